"""Prints the bytes of DeepSpeed's model states per parameter at the end of a backward pass (activations: one row)."""

import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--layers", type=int, default=100)
parser.add_argument("--local_rank", type=int, default=-1)
arguments = parser.parse_args()

zero = {"stage": arguments.stage, "reduce_bucket_size": 1_050_000, "overlap_comm": False, "contiguous_gradients": True,
        "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
if arguments.offload:
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "fp16": {"enabled": True, "initial_scale_power": 8},
    "zero_optimization": zero,
}
deepspeed.init_distributed()
with deepspeed.zero.Init(enabled=arguments.stage == 3, config_dict_or_path=config):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(arguments.layers)))
parameters = arguments.layers * 1024 * 1024
held = []
# The last gradient of a backward pass: all states are there, DeepSpeed has not tidied up yet.
model[0].weight.register_post_accumulate_grad_hook(lambda _: held.append(torch.cuda.memory_allocated()))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
data = torch.randn(1, 1024, device=engine.device, dtype=torch.half)
for step in range(3):
    engine.backward(engine(data).float().mean())
    if engine.global_rank == 0:
        print(f"step {step}: {parameters} parameters, {held[-1] / parameters:.4f} bytes each", flush=True)
    engine.step()
torch.distributed.destroy_process_group()
