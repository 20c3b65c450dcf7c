"""Where the run is: one line on a terminal that changes; elsewhere a plain line each time nothing moves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from phantom.terminal import units

INTERVAL_S = 0.25
STUCK_S = 5.0
"""So long nothing moves before the line says what is awaited."""
MIN_SHOWN_SPEED = 0.001
"""Below this the ratio of virtual to real time means nothing."""


class Progress:
    """Shows virtual time, real time, steps and what is awaited, from the simulator's messages.

    Where the output is not a terminal, a line is written when nothing has moved for STUCK_S, and again each
    time the wait has doubled. `now` is the clock in seconds, for tests.
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
        self._enabled = enabled
        self._stream = stream
        self._say_at_s = STUCK_S
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
        self._moved()
        self._last_s = float("-inf")
        self.show()

    def update(self, state: Mapping[str, Any]) -> None:
        """Takes the simulator's latest message: virtual_s, steps, attached, ranks, awaited."""
        before = (self._state.get("virtual_s"), self._state.get("steps"), self._state.get("attached"))
        self._state.update(state)
        if before != (self._state.get("virtual_s"), self._state.get("steps"), self._state.get("attached")):
            self._moved()
        self._phase = ""

    def _moved(self) -> None:
        self._moved_s = self._now()
        self._say_at_s = STUCK_S

    def stuck(self) -> str | None:
        """What is awaited and since when; None while things move."""
        stuck_s = self._now() - self._moved_s
        if stuck_s < STUCK_S or self._phase:
            return None
        awaited = self._state.get("awaited") or "the job (nothing new from any rank)"
        return f"nothing moved for {stuck_s:.0f} s, waiting for {awaited}"

    def line(self) -> str:
        """The text of the line."""
        wall_s = self._now() - self._started_s
        if self._phase:
            return f"phantom: {self._phase} ({wall_s:.0f} s)"
        state = self._state
        virtual_s = state.get("virtual_s")
        parts = []
        if virtual_s is not None:
            parts.append(f"virtual {units.seconds(virtual_s)}")
        parts.append(f"real {wall_s:.0f} s")
        if virtual_s and wall_s > 0 and virtual_s / wall_s >= MIN_SHOWN_SPEED:
            parts.append(f"{virtual_s / wall_s:.3g}x real time")
        if state.get("steps") is not None:
            parts.append(f"steps {state['steps']}")
        attached, ranks = state.get("attached"), state.get("ranks")
        if attached is not None and (not virtual_s or (ranks is not None and attached < ranks)):
            parts.append(f"ranks started {attached}" + (f" of {ranks}" if ranks is not None else ""))
        if stuck := self.stuck():
            parts.append(stuck)
        return "phantom: " + " · ".join(parts)

    def show(self) -> None:
        """Draws the line again, a few times a second at most; off a terminal writes it when nothing moves."""
        now_s = self._now()
        if not self._enabled or now_s - self._last_s < INTERVAL_S:
            return
        if not self._console.is_terminal:
            if now_s - self._moved_s >= self._say_at_s:
                self._say_at_s *= 2
                self._stream.write(self.line() + "\n")
                self._stream.flush()
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
