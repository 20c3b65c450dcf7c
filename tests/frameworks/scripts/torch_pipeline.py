"""torch.distributed.pipelining's zero-bubble schedules over stages that cost exactly the same."""

import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", choices=["zb", "zbv"], default="zb")
parser.add_argument("--micro-batches", type=int, default=8)
args = parser.parse_args()

HIDDEN, ROWS = 4096, 2048
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", torch.cuda.current_device())
mine = [rank] if args.schedule == "zb" else [rank, 2 * size - 1 - rank]
count = size if args.schedule == "zb" else 2 * size


class FreeLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        ctx.save_for_backward(output)
        return torch.empty((), device=output.device)

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(ctx.saved_tensors[0])


stages, parameters = [], []
for index in mine:
    block = torch.nn.Linear(HIDDEN, HIDDEN, bias=False).cuda().bfloat16()
    parameters += list(block.parameters())
    stages.append(PipelineStage(block, index, count, device))
kind = ScheduleInterleavedZeroBubble if args.schedule == "zb" else ScheduleZBVZeroBubble
schedule = kind(
    stages, args.micro_batches, loss_fn=lambda output, target: FreeLoss.apply(output), scale_grads=False
)
optimizer = torch.optim.SGD(parameters, lr=0.1)
data = torch.zeros(ROWS * args.micro_batches, HIDDEN, device=device, dtype=torch.bfloat16)
target = torch.zeros(ROWS * args.micro_batches, 1, device=device)
for _ in range(3):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    start.record()
    first, last = 0 in mine, count - 1 in mine
    schedule.step(*([data] if first else []), **({"target": target} if last else {}), return_outputs=False)
    end.record()
    torch.cuda.synchronize()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
# What a micro-batch costs in each of the three parts, without a pipeline.
block = stages[0].submod
x = torch.zeros(ROWS, HIDDEN, device=device, dtype=torch.bfloat16)
g = torch.zeros_like(x)
events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
events[0].record()
torch.mm(x, block.weight.t())
events[1].record()
torch.mm(g, block.weight)
events[2].record()
block.weight.grad.add_(torch.mm(g.t(), x))
events[3].record()
torch.cuda.synchronize()
parts = " ".join(f"{a.elapsed_time(b):.6f}" for a, b in itertools.pairwise(events))
print(f"schedule_ms {start.elapsed_time(end):.6f} parts {parts}", flush=True)
if rank == 0:
    for place, actions in schedule.pipeline_order.items():
        print(
            "order",
            place,
            " ".join(str(action) if action is not None else "-" for action in actions),
            flush=True,
        )
dist.barrier()
dist.destroy_process_group()
