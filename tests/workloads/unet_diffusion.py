"""A diffusion-style U-Net: group norm, attention, up- and down-sampling, an EMA copy, noise schedule on the device."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Res(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(128, cout)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.c1(F.silu(self.n1(x))) + self.time(t)[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128))
        self.d1, self.d2, self.mid = Res(32, 64), Res(64, 128), Res(128, 128)
        self.attention = nn.MultiheadAttention(128, 4, batch_first=True)
        self.u1, self.u2, self.out = Res(256, 64), Res(128, 32), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        freq = torch.exp(torch.linspace(0, -8, 64, device=x.device))
        angle = step[:, None].float() * freq
        t = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        a = self.d1(self.stem(x), t)
        b = self.d2(F.avg_pool2d(a, 2), t)
        m = self.mid(F.avg_pool2d(b, 2), t)
        tokens = m.flatten(2).transpose(1, 2)
        m = m + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape_as(m)
        m = F.interpolate(m, scale_factor=2, mode="nearest")
        c = self.u1(torch.cat([m, b], 1), t)
        c = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.u2(torch.cat([c, a], 1), t))


rank, world, device = start()
net = UNet().to(device)
average = copy.deepcopy(net)
ddp = DistributedDataParallel(net, device_ids=[device.index])
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
betas = torch.linspace(1e-4, 0.02, 1000, device=device)
keep = torch.cumprod(1 - betas, 0)
for step in range(4):
    image = torch.randn(4, 3, 32, 32, device=device)
    t = torch.randint(0, 1000, (4,), device=device)
    noise = torch.randn_like(image)
    alpha = keep[t][:, None, None, None]
    noisy = alpha.sqrt() * image + (1 - alpha).sqrt() * noise
    loss = F.mse_loss(ddp(noisy, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.01)
    say(f"step {step} loss {loss.item():.3f}")
dist.destroy_process_group()
