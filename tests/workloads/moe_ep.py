"""A mixture of experts with expert parallelism in plain PyTorch: top-k router, uneven all_to_all, experts."""

import os

import torch
import torch.distributed as dist
from torch import nn

TOKENS = int(os.environ.get("TOKENS", "8192"))
DIM, HIDDEN, EXPERTS, TOP_K, LAYERS, STEPS = 1024, 4096, 8, 2, 2, 3


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.sizes = (send, receive)
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.sizes
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        return out, None, None


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)

    def forward(self, x):
        scores = self.gate(x).float().softmax(dim=-1)
        weights, chosen = scores.topk(TOP_K, dim=-1)
        return weights, chosen


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.local = EXPERTS // dist.get_world_size()
        self.up = nn.ModuleList(nn.Linear(DIM, HIDDEN, bias=False) for _ in range(self.local))
        self.down = nn.ModuleList(nn.Linear(HIDDEN, DIM, bias=False) for _ in range(self.local))

    def forward(self, x):
        weights, chosen = self.router(x)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        send = counts.view(-1, self.local).sum(1).tolist()
        receive = received.view(-1, self.local).sum(1).tolist()
        order = chosen.flatten().argsort(stable=True)
        rows = AllToAll.apply(x[order // TOP_K], send, receive)
        # Rows come by sender, each sender's by expert.
        pieces = rows.split(received.tolist())
        outs = [[None] * self.local for _ in range(dist.get_world_size())]
        for expert in range(self.local):
            mine = [pieces[sender * self.local + expert] for sender in range(dist.get_world_size())]
            done = self.down[expert](nn.functional.silu(self.up[expert](torch.cat(mine))))
            for sender, piece in enumerate(done.split([len(piece) for piece in mine])):
                outs[sender][expert] = piece
        back = AllToAll.apply(torch.cat([piece for sender in outs for piece in sender]), receive, send)
        scaled = back * weights.flatten()[order].unsqueeze(1).to(back.dtype)
        self.counts = counts
        return x.index_add(0, order // TOP_K, scaled)


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    model = nn.Sequential(*[MoE() for _ in range(LAYERS)]).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        x = torch.randn(TOKENS, DIM, device="cuda", dtype=torch.bfloat16)
        model(x).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        for layer, moe in enumerate(model):
            print(f"step {step} layer {layer} counts {moe.counts.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
