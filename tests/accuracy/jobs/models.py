"""The models of the jobs, with data to train them on."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 1024


class Mlp(nn.Module):
    def __init__(self, width=768, depth=4):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 16))

    def forward(self, x):
        return self.layers(x)


class Cnn(nn.Module):
    def __init__(self, width=32):
        super().__init__()

        def block(inputs, outputs, stride):
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            )

        self.features = nn.Sequential(
            block(3, width, 1), block(width, width, 1), block(width, 2 * width, 2), block(2 * width, 2 * width, 1),
            block(2 * width, 4 * width, 2), block(4 * width, 4 * width, 1),
        )  # fmt: skip
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=256, depth=4, heads=4, length=128):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}
BATCH = {"mlp": 128, "cnn": 8, "gpt": 4}


def batch(model, device):
    """One batch of made-up data: inputs and labels."""
    size = BATCH[model]
    if model == "mlp":
        x, y = torch.randn(size, 768), torch.randint(0, 16, (size,))
    elif model == "cnn":
        x, y = torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))
    else:
        x, y = torch.randint(0, VOCABULARY, (size, 128)), torch.randint(0, VOCABULARY, (size, 128))
    return x.to(device), y.to(device)


def loss_of(model, outputs, labels):
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def optimizer_of(model, parameters):
    if model == "cnn":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(parameters, lr=1e-3)
