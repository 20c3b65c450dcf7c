"""DeepSpeed's pipeline engine: a stack of blocks over 2 stages (more with --stages), data parallel over the rest."""

import argparse

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule

parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--checkpoint", type=int, default=0)
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
arguments = parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


deepspeed.init_distributed()
torch.manual_seed(0)
layers = [LayerSpec(torch.nn.Linear, 64, 256), *(LayerSpec(Block, 256) for _ in range(6)), LayerSpec(torch.nn.Linear, 256, 10)]
net = PipelineModule(
    layers=layers,
    loss_fn=torch.nn.CrossEntropyLoss(),
    num_stages=arguments.stages,
    partition_method="parameters",
    activation_checkpoint_interval=arguments.checkpoint,
)
data = torch.utils.data.TensorDataset(torch.randn(256, 64).half(), torch.randint(0, 10, (256,)))
config = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "steps_per_print": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "fp16": {"enabled": True, "initial_scale_power": 8},
    "wall_clock_breakdown": False,
}
engine, *_ = deepspeed.initialize(
    model=net, model_parameters=[p for p in net.parameters() if p.requires_grad], training_data=data, config=config
)
for _ in range(arguments.steps):
    loss = engine.train_batch()
torch.distributed.destroy_process_group()
