"""One line on the terminal that says where the run is; nothing where the output is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

INTERVAL_S = 0.25
STUCK_S = 5.0
"""So long nothing moves before the line says what is awaited."""


class Progress:
    """Shows virtual time, real time, steps and what is awaited, from what the simulator tells.

    `now` is the clock in seconds, for tests.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = stream if stream is not None else sys.stderr
        self._console = Console(file=stream)
        self._enabled = enabled and self._console.is_terminal
        self._live: Live | None = None
        self._now = now
        self._started_s = now()
        self._last_s = float("-inf")
        self._moved_s = self._started_s
        self._state: dict[str, Any] = {}
        self._phase = ""

    def phase(self, text: str) -> None:
        """What phantom itself is doing before or after the job."""
        self._phase = text
        self._last_s = float("-inf")
        self.show()

    def update(self, state: Mapping[str, Any]) -> None:
        """Takes the simulator's latest message: virtual_s, steps, attached, awaited."""
        before = (self._state.get("virtual_s"), self._state.get("steps"), self._state.get("attached"))
        self._state.update(state)
        if before != (self._state.get("virtual_s"), self._state.get("steps"), self._state.get("attached")):
            self._moved_s = self._now()
        self._phase = ""

    def line(self) -> str:
        """The text of the line."""
        wall_s = self._now() - self._started_s
        if self._phase:
            return f"phantom: {self._phase} ({wall_s:.0f} s)"
        state = self._state
        parts = []
        if state.get("virtual_s") is not None:
            parts.append(f"virtual {state['virtual_s']:.6g} s")
        parts.append(f"real {wall_s:.0f} s")
        if state.get("virtual_s") and wall_s > 0:
            parts.append(f"{state['virtual_s'] / wall_s:.3g}x real time")
        if state.get("steps") is not None:
            parts.append(f"steps {state['steps']}")
        if not state.get("virtual_s") and state.get("attached") is not None:
            parts.append(f"ranks started {state['attached']}")
        stuck_s = self._now() - self._moved_s
        if stuck_s >= STUCK_S:
            awaited = state.get("awaited") or "the job (nothing new from any rank)"
            parts.append(f"nothing moved for {stuck_s:.0f} s, waiting for {awaited}")
        return "phantom: " + " · ".join(parts)

    def show(self) -> None:
        """Draws the line again, a few times a second at most."""
        now_s = self._now()
        if not self._enabled or now_s - self._last_s < INTERVAL_S:
            return
        self._last_s = now_s
        text = Text(self.line(), no_wrap=True, overflow="ellipsis")
        if self._live is None:
            # Refreshed by hand, so that nothing is drawn between clear() and other output.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Spinner("dots", text=text), refresh=True)

    def clear(self) -> None:
        """Takes the line away, before something else is printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._last_s = float("-inf")
