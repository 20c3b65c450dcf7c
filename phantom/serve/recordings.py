"""Records of collectives of jobs whose RUN_DIR is not here; whoever ran the job fetches its own."""

from __future__ import annotations

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

    def create(self, key: str) -> Path:
        """Makes the folder of a job by its token."""
        folder = Path(tempfile.mkdtemp(prefix="phantom-recording-"))
        with self._lock:
            self._folders[key] = folder
            old = list(self._folders)[:-KEPT]
        for each in old:
            self.remove(each)
        return folder

    def read(self, key: str, name: str) -> Iterator[bytes]:
        """A file of the job in chunks of at most CHUNK_BYTES; it is removed afterwards, and the folder with
        the last one. Raises KeyError for an unknown key and for a file that is not there.
        """
        folder = self._folders[key]
        file = next((path for path in folder.rglob(name)), None)
        if file is None:
            raise KeyError(name)
        with open(file, "rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
        file.unlink(missing_ok=True)
        if not any(path.is_file() for path in folder.rglob("*")):
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
