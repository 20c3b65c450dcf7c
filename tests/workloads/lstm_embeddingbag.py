"""An LSTM with packed sequences and an embedding-bag recommendation model with sparse gradients."""

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

rank, world, device = start()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(256, 20)

    def forward(self, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(padded)


tagger = DistributedDataParallel(Tagger().to(device), device_ids=[device.index])
optimizer = torch.optim.RMSprop(tagger.parameters(), lr=1e-3)
for step in range(3):
    lengths = [12, 9, 7, 4]  # as a tensor DDP would move it to the GPU, where packing refuses it
    tokens = torch.randint(0, 1000, (4, 12)).to(device)
    out = tagger(tokens, lengths)
    assert out.shape == (4, 12, 20)
    loss = nn.functional.cross_entropy(
        out.flatten(0, 1), torch.randint(0, 20, (48,), device=device), ignore_index=-100
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    say(f"lstm step {step} loss {loss.item():.3f}")

bag = nn.EmbeddingBag(10_000, 32, mode="sum").to(device)
mlp = nn.Sequential(nn.Linear(32 + 13, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(nn.ModuleDict({"bag": bag, "mlp": mlp}), device_ids=[device.index]).module
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
for step in range(3):
    ids = torch.randint(0, 10_000, (256,), device=device)
    offsets = torch.arange(0, 256, 4, device=device)
    features = torch.cat([model["bag"](ids, offsets), torch.randn(64, 13, device=device)], dim=1)
    loss = nn.functional.binary_cross_entropy_with_logits(
        model["mlp"](features).squeeze(1), torch.ones(64, device=device)
    )
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
    say(f"bag step {step} loss {loss.item():.3f}")
dist.destroy_process_group()
