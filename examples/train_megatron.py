"""A GPT trained with megatron-core: tensor, pipeline, context, expert and data parallelism.

    torchrun --nproc-per-node 8 examples/train_megatron.py --tp 2 --pp 2 --sequence-parallel
    phantom run -N 1 -G 8 examples/train_megatron.py --tp 2 --pp 2 --vpp 2 --micro-batches 8

Only megatron-core's public interface is used (pip install megatron-core==0.16.1). Without Transformer Engine
use --local-layers; sequence parallelism, context parallelism and grouped experts need it.
"""

import argparse
import os
import time
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=None)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=4, help="per step and data-parallel rank")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--vpp", type=int, default=None, help="virtual stages of each rank (interleaved)")
    parser.add_argument("--cp", type=int, default=1)
    parser.add_argument("--cp-comm", default="p2p", choices=["p2p", "all_gather", "a2a"])
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--experts", type=int, default=None)
    parser.add_argument("--topk", type=int, default=2)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--overlap", action="store_true", help="gradient reduction beside the backward pass")
    parser.add_argument("--recompute", choices=["full", "selective"], default=None)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--no-ends", action="store_true", help="the ends of the pipeline count as layers")
    parser.add_argument("--local-layers", action="store_true", help="layers without Transformer Engine")
    return parser.parse_args()


def build(args):
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.hidden,
        num_attention_heads=args.heads,
        num_query_groups=args.kv_heads,
        normalization="LayerNorm" if args.local_layers else "RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=args.precision == "bf16",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=args.vpp,
        context_parallel_size=args.cp,
        cp_comm_type=args.cp_comm,
        expert_model_parallel_size=args.ep,
        sequence_parallel=args.sequence_parallel,
        num_moe_experts=args.experts,
        moe_router_topk=args.topk,
        moe_grouped_gemm=args.experts is not None and not args.local_layers,
        moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-2 if args.experts else 0.0,
        recompute_granularity=args.recompute,
        recompute_method="uniform" if args.recompute == "full" else None,
        recompute_num_layers=1 if args.recompute == "full" else None,
        fp8="hybrid" if args.fp8 else None,
        account_for_embedding_in_pipeline_split=args.no_ends,
        account_for_loss_in_pipeline_split=args.no_ends,
        attention_softmax_in_fp32=True,
        bias_activation_fusion=False,
        apply_rope_fusion=not args.local_layers,
        gradient_accumulation_fusion=not args.local_layers,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        batch_p2p_comm=True,
        overlap_p2p_comm=False,
        deallocate_pipeline_outputs=True,
    )
    chunks = []
    for stage in range(args.vpp or 1):
        virtual = stage if args.vpp else None
        model = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_decoder_block_spec(
                config, use_transformer_engine=not args.local_layers, vp_stage=virtual
            ),
            vocab_size=args.vocabulary,
            max_sequence_length=args.sequence,
            pre_process=groups.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual),
            post_process=groups.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual),
            position_embedding_type="rope",
            vp_stage=virtual,
        )
        chunks.append(model.cuda().to(dtype))
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=args.distributed_optimizer,
        overlap_grad_reduce=args.overlap,
        overlap_param_gather=args.overlap and args.distributed_optimizer,
        grad_reduce_in_fp32=True,
    )
    chunks = [
        DistributedDataParallel(config=config, ddp_config=ddp, module=model, disable_bucketing=i > 0)
        for i, model in enumerate(chunks)
    ]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            bf16=args.precision == "bf16",
            params_dtype=dtype,
            use_distributed_optimizer=args.distributed_optimizer,
            overlap_param_gather=args.overlap and args.distributed_optimizer,
            clip_grad=1.0,
        ),
        chunks,
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if args.overlap:
        config.no_sync_func = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = config.no_sync_func if args.vpp else config.no_sync_func[0]
    return chunks, optimizer


def batches(args):
    """Random tokens, the same on all ranks that work on one batch."""
    while True:
        tokens = torch.randint(args.vocabulary, (args.micro_batch, args.sequence + 1))
        positions = torch.arange(args.sequence).expand(args.micro_batch, -1).contiguous()
        batch = {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
        batch["position_ids"] = positions
        batch = {name: tensor.cuda(non_blocking=True) for name, tensor in batch.items()}
        yield get_batch_on_this_cp_rank(batch) if args.cp > 1 else batch


def forward_step(iterator, model):
    batch = next(iterator)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(mean_loss)


def mean_loss(losses):
    loss = losses.float().mean()
    if groups.get_context_parallel_world_size() > 1:
        total = loss.detach().clone()
        dist.all_reduce(total, group=groups.get_context_parallel_group())
    return loss, {"loss": loss.detach()}


def main():
    args = arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    groups.initialize_model_parallel(
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        virtual_pipeline_model_parallel_size=args.vpp,
        context_parallel_size=args.cp,
        expert_model_parallel_size=args.ep,
    )
    torch.manual_seed(1234 + groups.get_data_parallel_rank())
    model_parallel_cuda_manual_seed(1234)
    chunks, optimizer = build(args)
    schedule = get_forward_backward_func()
    iterators = [batches(args) for _ in chunks]
    tokens = args.micro_batch * args.micro_batches * args.sequence * groups.get_data_parallel_world_size()
    started = time.perf_counter()
    for step in range(args.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        results = schedule(
            forward_step_func=forward_step,
            data_iterator=iterators if args.vpp else iterators[0],
            model=chunks if args.vpp else chunks[0],
            num_microbatches=args.micro_batches,
            seq_length=args.sequence,
            micro_batch_size=args.micro_batch,
            forward_only=False,
        )
        optimizer.step()
        torch.cuda.synchronize()
        now = time.perf_counter()
        if groups.is_pipeline_last_stage() and groups.get_tensor_model_parallel_rank() == 0:
            loss = sum(float(result["loss"]) for result in results) / len(results)
            print(
                f"rank {dist.get_rank()} step {step} loss {loss:.3f} {(now - started) * 1e3:.3f} ms "
                f"{tokens / (now - started):,.0f} tokens/s "
                f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
                flush=True,
            )
        started = now
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
