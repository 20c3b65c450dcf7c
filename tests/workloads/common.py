"""What every script here needs: one process per GPU, the rank's device, a way to print once."""

import os

import torch
import torch.distributed as dist


def start() -> tuple[int, int, torch.device]:
    """Joins the job and returns (rank, world size, device)."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(1234)
    return dist.get_rank(), dist.get_world_size(), device


def say(*words: object) -> None:
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(*words, flush=True)
