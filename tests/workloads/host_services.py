"""asyncio, queue timeouts, threads, multiprocessing queues, a Gloo group and an async checkpoint beside training."""

import asyncio
import multiprocessing
import queue
import threading
import time

import torch
import torch.distributed as dist
from common import say, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def worker(inbox: "multiprocessing.Queue[int]", outbox: "multiprocessing.Queue[int]") -> None:
    outbox.put(inbox.get(timeout=30) + 1)


async def nap() -> str:
    await asyncio.sleep(0.05)
    return await asyncio.wait_for(asyncio.sleep(0.01, "woke"), timeout=5)


if __name__ == "__main__":
    rank, world, device = start()
    host = dist.new_group(backend="gloo")
    model = DistributedDataParallel(nn.Linear(256, 256).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters())
    context = multiprocessing.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=worker, args=(inbox, outbox))
    child.start()
    copies: list[torch.Tensor] = []
    for step in range(4):
        loss = model(torch.randn(32, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        flag = torch.tensor([rank + 1])
        dist.all_reduce(flag, group=host)
        assert flag.item() == world * (world + 1) // 2
        saver = threading.Thread(target=lambda: copies.append(model.module.weight.detach().cpu()))
        saver.start()
        saver.join()
        assert asyncio.run(nap()) == "woke"
        try:
            queue.Queue().get(timeout=0.02)
        except queue.Empty:
            pass
    inbox.put(41)
    assert outbox.get(timeout=30) == 42
    child.join()
    before = time.monotonic()
    time.sleep(3.0)
    assert 3.0 <= time.monotonic() - before < 3.1, "a rank's sleep passes in virtual time"
    dist.barrier()
    say(f"loss {loss.item():.3f}, copies {len(copies)}")
    dist.destroy_process_group()
