"""What every job begins with: --device, --steps, and a process group that fits the device."""

import argparse
import os

import torch
import torch.distributed as dist


def arguments(*, models=("mlp", "cnn", "gpt")):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default=models[0], choices=models)
    return parser.parse_args()


def device_of(args):
    if args.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def join(args):
    """Joins the process group; returns the device."""
    device = device_of(args)
    dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
    return device
