"""Trains a GPT on random tokens: data, tensor, pipeline parallel or fully sharded, as the arguments say."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from checkpointing import RECOMPUTE
from model import STYLES, Shape, Stage
from pipeline import Neighbours, one_forward_one_backward
from sharding import PARALLEL, MasterOptimizer, adamw, fully_shard_stage
from torch import Tensor


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "hidden", "heads", "ffn", "vocabulary", "length", "micro-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=[1], help="per step; the last one goes on"
    )
    parser.add_argument("--style", choices=STYLES, default="mpt")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--attention", choices=("flash", "full", "unfused"), default="flash")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none")
    parser.add_argument("--parallel", choices=PARALLEL, default="dp")
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--zero1", action="store_true")
    parser.add_argument("--sharding", choices=("full", "grad"), default="full")
    parser.add_argument("--reduce", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--prefetch", choices=("pre", "post"), default="pre")
    parser.add_argument("--optimizer", choices=("fused", "foreach", "loop"), default="fused")
    parser.add_argument("--norm", choices=("fused", "eager"), default="fused", help="of RMSNorm")
    parser.add_argument("--loss", choices=("fp32", "half"), default="fp32", help="logits of the llama style")
    parser.add_argument(
        "--wait-for-sizes",
        choices=("none", "ends", "all"),
        default="none",
        help="stages whose host reads every batch's sizes from the GPU, as Megatron's broadcast_data",
    )
    parser.add_argument(
        "--wait-for-exchange", action="store_true", help="wait for the GPU after each exchange of stages"
    )
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    return parser.parse_args()


def groups_of(arguments: argparse.Namespace) -> dict[str, dist.ProcessGroup | None]:
    """Make this rank's groups: ranks are ordered tensor fastest, then data, then pipeline (as Megatron's)."""
    world, rank = dist.get_world_size(), dist.get_rank()
    tensor, stages = arguments.tensor, arguments.pipeline
    per_stage = world // stages
    wanted = {
        "tensor": [list(range(r, r + tensor)) for r in range(0, world, tensor)] if tensor > 1 else [],
        "data": [
            list(range(s * per_stage + t, (s + 1) * per_stage, tensor))
            for s in range(stages)
            for t in range(tensor)
        ]
        if per_stage > tensor
        else [],
        "ends": [[r, r + (stages - 1) * per_stage] for r in range(per_stage)] if stages > 1 else [],
        "model": [
            [s * per_stage + d * tensor + t for s in range(stages) for t in range(tensor)]
            for d in range(per_stage // tensor)
        ]
        if stages * tensor > 1
        else [],
    }
    mine: dict[str, dist.ProcessGroup | None] = {}
    for name, lists in wanted.items():
        mine[name] = None
        for ranks in lists:
            group = dist.new_group(ranks)
            if rank in ranks:
                mine[name] = group
    return mine


def read_sizes(sizes: tuple[int, ...], group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Tell the tensor group a batch's sizes and read them on the host, which waits for the GPU.

    Megatron-LM, megatron/core/tensor_parallel/data.py, _build_key_size_numel_dictionaries: every micro-batch.
    """
    told = torch.tensor(sizes, dtype=torch.long, device=device)
    if group is not None:
        dist.broadcast(told, dist.get_global_rank(group, 0), group=group)
    told.cpu()


def train_in_three_dimensions(
    arguments: argparse.Namespace,
    shape: Shape,
    groups: dict[str, dist.ProcessGroup | None],
    device: torch.device,
) -> None:
    """Tensor, pipeline and data parallel training with master copies of the parameters."""
    dtype = torch.float16 if arguments.dtype == "fp16" else torch.bfloat16
    stages, per_stage = arguments.pipeline, dist.get_world_size() // arguments.pipeline
    number = dist.get_rank() // per_stage
    bounds = [round(shape.layers * s / stages) for s in range(stages + 1)]
    torch.set_default_dtype(dtype)
    with torch.device(device):
        stage = Stage(shape, first=bounds[number], last=bounds[number + 1])
    torch.set_default_dtype(torch.float32)
    optimizer = MasterOptimizer(
        list(stage.parameters()),
        group=groups["data"],
        sharded=arguments.zero1,
        fp16=arguments.dtype == "fp16",
        everyone=groups["model"],
    )
    link = Neighbours(
        stage=number,
        stages=stages,
        previous=dist.get_rank() - per_stage,
        following=dist.get_rank() + per_stage,
        shape=(shape.length, arguments.micro_batch, shape.hidden),
        dtype=dtype,
        device=device,
        waits=arguments.wait_for_exchange,
    )
    extra = stage.extra(device)
    scale = 1.0
    reads_sizes = arguments.wait_for_sizes == "all" or (
        arguments.wait_for_sizes == "ends" and (stage.starts or stage.ends)
    )

    def forward(x: Tensor | None) -> Tensor:
        if reads_sizes:
            read_sizes((arguments.micro_batch, shape.length + 1), groups["tensor"], device)
        ids = torch.randint(0, shape.vocabulary, (arguments.micro_batch, shape.length + 1), device=device)
        output: Tensor = stage(x, ids, extra)
        return output * scale if stage.ends else output

    for step in range(arguments.steps):
        count = arguments.micro_batches[min(step, len(arguments.micro_batches) - 1)]
        scale = 1.0 / count
        one_forward_one_backward(forward, count, link)
        if groups["ends"] is not None and (stage.starts or stage.ends):
            dist.all_reduce(stage.words.weight.grad, group=groups["ends"])
        optimizer.step()


def train_sharded(arguments: argparse.Namespace, shape: Shape, device: torch.device) -> None:
    """Fully sharded training (FSDP1 or FSDP2)."""
    with torch.device("meta"):
        stage = Stage(shape, first=0, last=shape.layers)
    model = fully_shard_stage(stage, arguments, device)
    optimizer = adamw(list(model.parameters()), arguments.optimizer)
    extra = stage.extra(device)
    for step in range(arguments.steps):
        count = arguments.micro_batches[min(step, len(arguments.micro_batches) - 1)]
        for _ in range(count):
            ids = torch.randint(0, shape.vocabulary, (arguments.micro_batch, shape.length + 1), device=device)
            (model(ids, ids, extra) / count).backward()
        if hasattr(model, "clip_grad_norm_"):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    """Run the job."""
    arguments = parse()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    groups = groups_of(arguments) if arguments.parallel == "dp" else {"tensor": None}
    shape = Shape(
        style=arguments.style,
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads or arguments.heads,
        ffn=arguments.ffn,
        vocabulary=arguments.vocabulary,
        length=arguments.length,
        flash=arguments.attention != "unfused",
        causal=arguments.attention != "full",
        dropout=arguments.dropout,
        recompute=arguments.recompute,
        group=groups["tensor"],
        eager_norm=arguments.norm == "eager",
        half_loss=arguments.loss == "half",
    )
    if arguments.parallel == "dp":
        train_in_three_dimensions(arguments, shape, groups, device)
    else:
        train_sharded(arguments, shape, device)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
