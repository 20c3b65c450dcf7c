"""Records of collectives of jobs whose RUN_DIR is not here; whoever ran the job fetches its own."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

KEPT = 4
"""Records that nobody fetched; the oldest goes when another job opens."""

CHUNK_BYTES = 1 << 20


class Recordings:
    """Folders of this machine by key. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        self._lock = threading.Lock()

    def create(self) -> str:
        """A key for a job's record; `folder` is where it goes."""
        key = secrets.token_hex(8)
        with self._lock:
            self._folders[key] = Path(tempfile.mkdtemp(prefix="phantom-recording-"))
            old = list(self._folders)[:-KEPT]
        for each in old:
            self.remove(each)
        return key

    def folder(self, key: str) -> Path:
        """The folder of this key. Raises KeyError."""
        return self._folders[key]

    def read(self, key: str, name: str) -> Iterator[bytes]:
        """The record in chunks of at most CHUNK_BYTES; it is removed afterwards.

        Raises KeyError for an unknown key.
        """
        file = self._folders[key] / name
        if file.exists():
            with open(file, "rb") as source:
                while chunk := source.read(CHUNK_BYTES):
                    yield chunk
        self.remove(key)

    def remove(self, key: str) -> None:
        """Removes one record; without effect where it is gone."""
        with self._lock:
            folder = self._folders.pop(key, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Removes all."""
        for key in list(self._folders):
            self.remove(key)
