"""Notices training steps without the script's help.

A step is a maximal run of optimizer steps without a backward pass between them: ZeRO-3 steps per sub-group,
Megatron chains optimizers. Where the optimizer runs inside the backward pass, the step ends with that
backward pass.
"""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any

from interpose import environment
from interpose.extension_protocol import Extension
from interpose.time import session


class StepCounter:
    """The state machine: backward passes and optimizer steps in, ends of steps out.

    `step_end(index)` is called at every optimizer step of a run with the same index; a later call replaces
    the earlier. `limit`: after so many steps `finished()` is called, at the optimizer step that completes the
    run (known from the run before it), at the next backward pass where the run turns out shorter, else never.
    """

    def __init__(self, step_end: Any, *, limit: int | None = None, finished: Any = None) -> None:
        self._step_end = step_end
        self._limit = limit
        self._finished = finished
        self._index = -1
        self._in_run = False
        self._in_backward = 0
        self._backward_seen = False
        self._stepped_in_backward = False
        self._run_length = 0
        self._previous_length = 0
        self._lock = threading.RLock()

    @property
    def steps(self) -> int:
        """Steps seen so far, the running one included."""
        return self._index + 1

    def backward_begins(self) -> None:
        """A backward pass starts, which ends a run of optimizer steps."""
        with self._lock:
            if not self._backward_seen:
                self._backward_seen = True
                # Optimizer steps before any backward pass make the optimizer's state (DeepSpeed's BF16
                # optimizer): no training step; the first real one replaces it.
                self._in_run, self._index = False, -1
            if self._in_backward == 0 and self._in_run:
                self._in_run = False
                self._previous_length = self._run_length
                if self._limit is not None and self.steps >= self._limit:
                    self._finished()
            self._in_backward += 1

    def backward_ended(self) -> None:
        """A backward pass is over."""
        with self._lock:
            self._in_backward -= 1
            if self._in_backward == 0 and self._stepped_in_backward:
                self._stepped_in_backward = False
                self._optimizer_step()

    def optimizer_stepped(self) -> None:
        """One torch.optim optimizer has done its step."""
        with self._lock:
            if self._in_backward:
                self._stepped_in_backward = True
            else:
                self._optimizer_step()

    def _optimizer_step(self) -> None:
        if not self._in_run:
            self._in_run = True
            self._index += 1
            self._run_length = 0
        self._run_length += 1
        if self._limit is not None and self._index >= self._limit:
            return
        self._step_end(self._index)
        complete = self._previous_length and self._run_length >= self._previous_length
        if self._limit is not None and self.steps == self._limit and complete:
            self._finished()


_counter: StepCounter | None = None


def counter(extension: Extension) -> StepCounter:
    """This process's counter, made on first use."""
    global _counter
    if _counter is None:
        limit = environment.read().config.get("steps")
        _counter = StepCounter(extension.step_end, limit=limit, finished=_end_job)
    return _counter


def watch_optimizers(module: ModuleType, extension: Extension) -> None:
    """Registers the global post-step hook; `module` is torch.optim.optimizer."""

    def after_step(*_: Any) -> None:
        if session.is_open():
            counter(extension).optimizer_stepped()

    module.register_optimizer_step_post_hook(after_step)


def watch_backward(module: ModuleType, extension: Extension) -> None:
    """Makes torch.autograd's engine announce backward passes; `module` is torch.autograd.variable.

    The engine object is replaced by one of a sub-class, which every way into it uses: Tensor.backward,
    autograd.grad, and frameworks that call Variable._execution_engine.run_backward themselves.
    """

    class ImperativeEngine(module.ImperativeEngine):  # type: ignore[misc, name-defined]
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            if not session.is_open():
                return super().run_backward(*args, **kwargs)
            extension.backward_begins()  # the autograd threads go on with this thread's clock
            steps = counter(extension)
            steps.backward_begins()
            try:
                return super().run_backward(*args, **kwargs)
            finally:
                steps.backward_ended()

    module.Variable._execution_engine = ImperativeEngine()


def _end_job() -> None:
    """The job has done its --steps: final synchronisation and statistics, then this process ends with 0."""
    session.close()
    session.wait_for_others()
    try:
        from multiprocessing import util

        util._exit_function()  # type: ignore[attr-defined]  # ends data-loader workers
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
