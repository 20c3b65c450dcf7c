"""Records the steps of a real run: `phantom record`. No virtual device, no simulator, no virtual time.

Steps are noticed as in a simulated run (interpose/time/steps.py), so that both sides mean the same by a step.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from interpose.after_import import after_import
from interpose.time.steps import StepCounter

MODE = "record"
"""Value of PHANTOM that asks for recording."""
FOLDER = "PHANTOM_RECORD"
STEPS = "PHANTOM_RECORD_STEPS"
TRACE = "PHANTOM_RECORD_TRACE"


class Recorder:
    """One process's steps. Rank and size are those of torch's launchers; without them it is a job of one.

    `limit`: the process ends with status 0 after so many steps. `trace`: first and last step (inclusive) of
    rank 0 that torch.profiler records; their times hold its cost.
    """

    def __init__(
        self, folder: Path, *, limit: int | None = None, trace: tuple[int, int] | None = None
    ) -> None:
        self._folder = folder
        self._rank = int(os.environ.get("RANK") or 0)
        self._world_size = int(os.environ.get("WORLD_SIZE") or 1)
        self._trace = trace if self._rank == 0 else None
        self._profiler: Any = None
        self._ends: dict[int, tuple[int, int]] = {}
        self._written = False
        self.counter = StepCounter(self.step_end, limit=limit, finished=self._end_job)

    def step_end(self, index: int) -> None:
        """A step has ended; a later call with the same index replaces the earlier."""
        torch = sys.modules["torch"]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if self._trace is not None and index == self._trace[1] and self._profiler is not None:
            self._end_trace()
        self._ends[index] = (time.monotonic_ns(), time.process_time_ns())
        if self._trace is not None and index == self._trace[0] - 1 and self._profiler is None:
            self._begin_trace()

    def _begin_trace(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        torch = sys.modules["torch"]
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)
        self._profiler.__enter__()

    def _end_trace(self) -> None:
        profiler, self._profiler = self._profiler, None
        self._trace = None
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(str(self._folder / "trace.json"))

    def write(self) -> None:
        """Writes what there is: FOLDER/rank-RANK.json. A process without steps writes nothing."""
        if self._written or not self._ends:
            return
        self._written = True
        torch = sys.modules["torch"]
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        content = {
            "rank": self._rank,
            "world_size": self._world_size,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "threads": torch.get_num_threads(),
            "ends_ns": [[index, *times] for index, times in sorted(self._ends.items())],
        }
        path = self._folder / f"rank-{self._rank}.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(content))
        temporary.replace(path)

    def _end_job(self) -> None:
        self.write()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        # Rank 0 usually holds the store of the job: it stays until all others are done.
        deadline_s = time.monotonic() + 30.0
        while self._rank == 0 and time.monotonic() < deadline_s:
            if len(list(self._folder.glob("rank-*.json"))) >= self._world_size:
                break
            time.sleep(0.01)
        os._exit(0)


def install() -> None:
    """Makes this process record its steps, if it has any; called before torch is imported."""
    limit, trace = os.environ.get(STEPS), os.environ.get(TRACE)
    first, _, last = (trace or "").partition(":")
    recorder = Recorder(
        Path(os.environ[FOLDER]),
        limit=int(limit) if limit else None,
        trace=(int(first), int(last)) if trace else None,
    )
    after_import("torch.optim.optimizer", lambda module: _watch_optimizers(module, recorder))
    after_import("torch.autograd.variable", lambda module: _watch_backward(module, recorder))
    atexit.register(recorder.write)


def _watch_optimizers(module: ModuleType, recorder: Recorder) -> None:
    def after_step(*_: Any) -> None:
        recorder.counter.optimizer_stepped()

    module.register_optimizer_step_post_hook(after_step)


def _watch_backward(module: ModuleType, recorder: Recorder) -> None:
    class ImperativeEngine(module.ImperativeEngine):  # type: ignore[misc, name-defined]
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            recorder.counter.backward_begins()
            try:
                return super().run_backward(*args, **kwargs)
            finally:
                recorder.counter.backward_ended()

    module.Variable._execution_engine = ImperativeEngine()
