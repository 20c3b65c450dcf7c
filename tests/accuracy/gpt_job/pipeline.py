"""One-forward-one-backward pipeline schedule (1F1B) over blocking exchanges between neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Neighbours:
    """Global ranks before and after this stage, and what travels between stages.

    `waits`: the host waits for the GPU after each exchange, as Megatron-LM's p2p_communication.py does after
    batch_isend_irecv.
    """

    stage: int
    stages: int
    previous: int
    following: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    waits: bool = False

    def exchange(
        self,
        *,
        ahead: Tensor | None = None,
        back: Tensor | None = None,
        want_input: bool = False,
        want_gradient: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send an activation *ahead*, a gradient *back*, receive what is wanted; return (input, gradient)."""
        operations = []
        received: Tensor | None = None
        gradient: Tensor | None = None
        if back is not None:
            operations.append(dist.P2POp(dist.isend, back, self.previous))
        if want_input:
            received = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            operations.append(dist.P2POp(dist.irecv, received, self.previous))
        if ahead is not None:
            operations.append(dist.P2POp(dist.isend, ahead, self.following))
        if want_gradient:
            gradient = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            operations.append(dist.P2POp(dist.irecv, gradient, self.following))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            if self.waits:
                torch.cuda.synchronize()
        if received is not None:
            received.requires_grad_()
        return received, gradient


def one_forward_one_backward(
    forward: Callable[[Tensor | None], Tensor], micro_batches: int, link: Neighbours
) -> None:
    """Run *micro_batches* through this stage, whose *forward* maps an input to an output or the loss."""
    first, last = link.stage == 0, link.stage == link.stages - 1
    pending: list[tuple[Tensor | None, Tensor]] = []

    def run(x: Tensor | None) -> Tensor:
        output = forward(x)
        pending.append((x, output))
        return output.detach()

    def backward(gradient: Tensor | None) -> Tensor | None:
        x, output = pending.pop(0)
        torch.autograd.backward(output, gradient)
        return None if x is None else x.grad

    warm_up = min(link.stages - link.stage - 1, micro_batches)
    for _ in range(warm_up):
        x, _ = link.exchange(want_input=not first)
        link.exchange(ahead=None if last else run(x))
    steady = micro_batches - warm_up
    x = link.exchange(want_input=not first)[0] if steady else None
    for number in range(steady):
        output = run(x)
        _, gradient = (None, None) if last else link.exchange(ahead=output, want_gradient=True)
        back = backward(gradient)
        more = number + 1 < steady
        x, _ = link.exchange(back=None if first else back, want_input=more and not first)
    for _ in range(warm_up):
        _, gradient = link.exchange(want_gradient=not last)
        link.exchange(back=None if first else backward(gradient)) if not first else backward(gradient)
