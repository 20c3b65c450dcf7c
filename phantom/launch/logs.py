"""What the processes of a job print: files in RUN_DIR/ranks, some of them shown on the terminal as well."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import BinaryIO

TAIL_LINES = 20
TAIL_BYTES = 16_384

# Triton's binding library (nanobind) lists what a process that ended by an exception did not free; that would
# push the exception out of sight.
_NOISE = re.compile(
    r"^(nanobind: .*| - leaked .*| - \.\.\. skipped remainder|See https://nanobind\S*)\n?", re.M
)


class Follower:
    """Copies what is appended to log files to the terminal, whole lines, prefixed where there are several."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream
        self._files: dict[Path, tuple[int, bytes, str]] = {}

    def add(self, path: Path, prefix: str = "") -> None:
        """Follows `path` from its start; it may not exist yet."""
        self._files.setdefault(path, (0, b"", prefix))

    def paths(self) -> list[Path]:
        """What is followed."""
        return list(self._files)

    def has_news(self) -> bool:
        """Whether a file has grown since the last copy."""
        for path, (offset, _, _) in self._files.items():
            try:
                if path.stat().st_size > offset:
                    return True
            except FileNotFoundError:
                continue
        return False

    def copy(self, *, last: bool = False) -> bool:
        """Copies what is new; `last`: also an unfinished line. Returns whether anything was written."""
        out = self._stream if self._stream is not None else sys.stdout.buffer
        wrote = False
        for path, (offset, rest, prefix) in self._files.items():
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    new = file.read()
            except FileNotFoundError:
                continue
            if not new and not (last and rest):
                continue
            text = rest + new
            # Progress bars end in \r; they count as a line so that they move.
            cut = len(text) if last else max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            self._files[path] = (offset + len(new), text[cut:], prefix)
            if cut:
                shown = text[:cut]
                if prefix:
                    shown = b"".join(prefix.encode() + line for line in shown.splitlines(keepends=True))
                out.write(shown)
                wrote = True
        if wrote:
            out.flush()
        return wrote


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
            return "\n".join(_NOISE.sub("", text).splitlines()[-lines:])
    except OSError:
        return ""
