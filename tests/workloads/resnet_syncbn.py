"""A ResNet-style CNN with SyncBatchNorm, channels_last, a pinned data loader with workers, accuracy on the host."""

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip
        self.skip = (
            nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 or cin != cout else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


if __name__ == "__main__":
    rank, world, device = start()
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(64, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(device, memory_format=torch.channels_last)
    net = DistributedDataParallel(net, device_ids=[device.index])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    data = TensorDataset(torch.randn(128, 3, 64, 64), torch.randint(0, 10, (128,)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=2, pin_memory=True)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        correct = 0
        for images, labels in loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = net(images)
                loss = nn.functional.cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (out.argmax(1) == labels).sum().item()
        say(f"epoch {epoch} loss {loss.item():.3f} correct {correct}")
    net.eval()
    with torch.no_grad():
        net(torch.randn(2, 3, 64, 64, device=device))
    dist.destroy_process_group()
