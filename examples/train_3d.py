"""A GPT trained with tensor (TP), pipeline (PP) and data parallelism (DP), in plain PyTorch.

    torchrun --nproc-per-node 8 examples/train_3d.py --tp 4 --pp 2
    phantom run -N 4 -G 8 --steps 3 examples/train_3d.py --tp 8 --pp 1

The defaults are a 13-billion-parameter model. docs/tutorial.md uses this script to choose TP and PP.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class CopyToTensorParallel(torch.autograd.Function):
    """Identity; the gradient is summed over the TP ranks."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class SumOverTensorParallel(torch.autograd.Function):
    """Sums over the TP ranks; the gradient passes through."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Block(nn.Module):
    def __init__(self, hidden, heads, group):
        super().__init__()
        tp = dist.get_world_size(group)
        self.group, self.heads = group, heads // tp
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden // tp)
        self.out = nn.Linear(hidden // tp, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden // tp)
        self.down = nn.Linear(4 * hidden // tp, hidden, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        h = CopyToTensorParallel.apply(self.ln1(x), self.group)
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, dim=-1)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + SumOverTensorParallel.apply(
            self.out(h.transpose(1, 2).reshape(batch, length, -1)), self.group
        )
        h = CopyToTensorParallel.apply(self.ln2(x), self.group)
        return x + SumOverTensorParallel.apply(self.down(F.gelu(self.up(h))), self.group)


class Stage(nn.Module):
    """The layers of one pipeline stage; the first embeds, the last projects to the vocabulary."""

    def __init__(self, args, stage, group):
        super().__init__()
        layers = args.layers // args.pp
        self.embed = nn.Embedding(args.vocab, args.hidden) if stage == 0 else None
        self.blocks = nn.ModuleList(Block(args.hidden, args.heads, group) for _ in range(layers))
        self.head = nn.Linear(args.hidden, args.vocab, bias=False) if stage == args.pp - 1 else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.head is not None else x


def main():
    parser = argparse.ArgumentParser()
    defaults = {
        "tp": 8, "pp": 1, "layers": 40, "hidden": 5120, "heads": 40, "vocab": 32000, "length": 2048,
        "global_batch": 32, "micro_batch": 1, "steps": 5,
    }  # fmt: skip
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    dp = world // (args.tp * args.pp)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    mesh = init_device_mesh("cuda", (args.pp, dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    stage = mesh.get_local_rank("pp")
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Stage(args, stage, mesh.get_group("tp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sequences = args.global_batch // dp
    micro_batches = sequences // args.micro_batch

    def loss_of(logits, target):
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    schedule = None
    if args.pp > 1:
        pipeline = PipelineStage(model, stage, args.pp, device, group=mesh.get_group("pp"))
        schedule = Schedule1F1B(pipeline, micro_batches, loss_fn=loss_of)
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(f"TP {args.tp} x PP {args.pp} x DP {dp}, {micro_batches} micro-batches, "
              f"{parameters / 1e9:.2f}B parameters on rank 0", flush=True)  # fmt: skip
    for step in range(args.steps):
        start = time.perf_counter()
        tokens = torch.randint(args.vocab, (sequences, args.length + 1), device=device)
        x, y = tokens[:, :-1], tokens[:, 1:]
        if schedule is None:
            for xs, ys in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
                loss_of(model(xs), ys).backward()
        else:
            inputs = (x,) if stage == 0 else ()
            targets = {"target": y} if stage == args.pp - 1 else {}
            schedule.step(*inputs, **targets)
        if dp > 1:
            works = [dist.all_reduce(p.grad, dist.ReduceOp.AVG, group=mesh.get_group("dp"), async_op=True)
                     for p in model.parameters()]  # fmt: skip
            for work in works:
                work.wait()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if rank == 0:
            seconds = time.perf_counter() - start
            rate = args.global_batch * args.length / seconds
            print(f"step {step}: {seconds * 1e3:.1f} ms, {rate:,.0f} tokens/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
