"""One line on the terminal that says where the run is; nothing where the output is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

INTERVAL_S = 0.25


class Progress:
    """Shows virtual time, real time, steps and what is awaited, from what the simulator tells."""

    def __init__(self, *, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = enabled and self._stream.isatty()
        self._shown = False
        self._started_s = time.monotonic()
        self._last_s = 0.0
        self._state: dict[str, Any] = {}
        self._phase = ""

    def phase(self, text: str) -> None:
        """What phantom itself is doing before the job runs."""
        self._phase = text
        self._last_s = 0.0
        self.show()

    def update(self, state: Mapping[str, Any]) -> None:
        """Takes the simulator's latest message."""
        self._state.update(state)
        self._phase = ""

    def line(self) -> str:
        """The text of the line."""
        wall_s = time.monotonic() - self._started_s
        if self._phase:
            return f"phantom: {self._phase} ({wall_s:.0f} s)"
        state = self._state
        parts = [f"real {wall_s:.0f} s"]
        virtual_s = state.get("virtual_s")
        if virtual_s is not None:
            parts.insert(0, f"virtual {virtual_s:.6g} s")
        if state.get("steps") is not None:
            parts.append(f"steps {state['steps']}")
        if state.get("awaited"):
            parts.append(f"waiting for {state['awaited']}")
        return "phantom: " + " · ".join(parts)

    def show(self) -> None:
        """Draws the line again, a few times a second at most."""
        now_s = time.monotonic()
        if not self._enabled or now_s - self._last_s < INTERVAL_S:
            return
        self._last_s = now_s
        width = shutil.get_terminal_size().columns
        self._stream.write("\r\x1b[K" + self.line()[: width - 1])
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Takes the line away, before something else is printed."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
            self._last_s = 0.0
