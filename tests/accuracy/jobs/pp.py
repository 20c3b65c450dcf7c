"""Pipeline parallel: half of the blocks on each rank, four microbatches, 1F1B or GPipe."""

import torch
import torch.distributed as dist
from common import join
from models import Gpt, batch, loss_of, optimizer_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def arguments():
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--schedule", default="1f1b", choices=["1f1b", "gpipe"])
    return parser.parse_args()


class Part(torch.nn.Module):
    """The blocks of one stage, with the embedding before the first and the head after the last."""

    def __init__(self, whole, rank, size):
        super().__init__()
        each = len(whole.blocks) // size
        self.blocks = torch.nn.ModuleList(whole.blocks[rank * each : (rank + 1) * each])
        self.first, self.last = rank == 0, rank == size - 1
        if self.first:
            self.tokens, self.places = whole.tokens, whole.places
        if self.last:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x):
        if self.first:
            x = self.tokens(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


args = arguments()
device = join(args)
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
part = Part(Gpt(), rank, size).to(device)
stage = PipelineStage(part, rank, size, device)
schedule = (Schedule1F1B if args.schedule == "1f1b" else ScheduleGPipe)(
    stage, n_microbatches=4, loss_fn=lambda outputs, labels: loss_of("gpt", outputs, labels)
)
optimizer = optimizer_of("gpt", part.parameters())
x, y = batch("gpt", device)
for _ in range(args.steps):
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        losses = []
        schedule.step(target=y, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
if rank == size - 1:
    print("loss", sum(loss.item() for loss in losses))
dist.destroy_process_group()
