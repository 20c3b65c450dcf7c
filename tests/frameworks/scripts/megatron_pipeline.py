"""megatron-core's pipeline schedules over stages of exactly the same cost; `--recompute` recomputes them."""

import argparse
import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import checkpoint, model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--virtual", type=int, default=1)
parser.add_argument("--micro-batches", type=int, default=8)
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()

HIDDEN, SEQUENCE = 4096, 2048


class FreeLoss(torch.autograd.Function):
    """A loss that costs nothing, so that the last stage costs what the others do."""

    @staticmethod
    def forward(ctx, output):
        ctx.save_for_backward(output)
        return ZERO.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(ctx.saved_tensors[0])


class Stage(torch.nn.Module):
    def __init__(self, config, first):
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.first = first
        layers = [torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(args.blocks)]
        self.blocks = torch.nn.Sequential(*layers).cuda().bfloat16()
        self.input = None

    def set_input_tensor(self, tensor):
        self.input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self):
        # The first stage's input wants a gradient too, so that its backward pass costs what the others' does.
        data = SOURCE.detach().requires_grad_() if self.first else self.input
        return checkpoint(self.blocks, False, data) if args.recompute else self.blocks(data)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size = dist.get_world_size()
virtual = args.virtual if args.virtual > 1 else None
groups.initialize_model_parallel(
    pipeline_model_parallel_size=size, virtual_pipeline_model_parallel_size=virtual
)
model_parallel_cuda_manual_seed(1)
SOURCE = torch.zeros(SEQUENCE, 1, HIDDEN, device="cuda", dtype=torch.bfloat16)
ZERO = torch.zeros((), device="cuda")
config = TransformerConfig(
    num_layers=size * args.virtual,
    hidden_size=HIDDEN,
    num_attention_heads=32,
    pipeline_model_parallel_size=size,
    virtual_pipeline_model_parallel_size=virtual,
    pipeline_dtype=torch.bfloat16,
    params_dtype=torch.bfloat16,
    bf16=True,
    deallocate_pipeline_outputs=False,
    overlap_p2p_comm=virtual is not None,
    batch_p2p_comm=virtual is None,
)
stages = [
    Stage(config, groups.is_pipeline_first_stage(ignore_virtual=False, vp_stage=i))
    for i in range(args.virtual)
]
optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.1, foreach=True)


def forward_step(_, stage):
    return stage(), lambda output: (FreeLoss.apply(output), {})


schedule = get_forward_backward_func()
for _ in range(3):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    start.record()
    schedule(
        forward_step_func=forward_step,
        data_iterator=[None] * args.virtual if virtual else None,
        model=stages if virtual else stages[0],
        num_microbatches=args.micro_batches,
        seq_length=SEQUENCE,
        micro_batch_size=1,
        forward_only=False,
    )
    end.record()
    torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
print(f"schedule_ms {start.elapsed_time(end):.6f} peak {torch.cuda.max_memory_allocated()}", flush=True)
dist.barrier()
dist.destroy_process_group()
