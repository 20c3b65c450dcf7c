"""Kernel measurements on disk: one SQLite file, safe with several writers, readable on any machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from netsim.outside import OutsideError, parse_json, printable

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x50484B53  # "PHKS": marks the file as ours in SQLite's header
_BUSY_TIMEOUT_MS = 30_000
_MAX_TEXT = 1 << 20
_COLUMNS = """
    key TEXT NOT NULL, device TEXT NOT NULL, kind TEXT NOT NULL, threads INTEGER NOT NULL, torch TEXT NOT
    NULL,
    runtime TEXT NOT NULL, clock_hz REAL, median_s REAL NOT NULL, spread_s REAL NOT NULL, repetitions
    INTEGER NOT NULL,
    warmup INTEGER NOT NULL, measured_at TEXT NOT NULL,
    UNIQUE (key, device, threads, torch, runtime)
"""


class StoreError(RuntimeError):
    """A kernel store cannot be used; the text names the file, what is wrong and what to do."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured kernel.

    *device* is the GPU's or the CPU's name, *kind* ``cuda`` or ``cpu``, *threads* the CPU threads (0 for
    CUDA), *torch* and *runtime*
    the versions (CUDA, or the CPU's math library), *clock_hz* the clock if known; *median_s* over
    *repetitions*
    runs after *warmup* runs, *spread_s* the distance between the quartiles; *measured_at* ISO 8601 UTC.
    """

    key: str
    device: str
    kind: str
    threads: int
    torch: str
    runtime: str
    clock_hz: float | None
    median_s: float
    spread_s: float
    repetitions: int
    warmup: int
    measured_at: str


_NAMES = tuple(field.name for field in fields(Measurement))
_SELECT = f"SELECT {', '.join(_NAMES)} FROM measurements"
# A run looks rows up while ranks wait: one that no device can have measured is refused at the opening.
_IMPOSSIBLE = (
    _SELECT
    + " WHERE coalesce(NOT ("
    + " AND ".join(f"typeof({name}) = 'text'" for name in ("key", "device", "kind", "torch", "runtime"))
    + " AND typeof(median_s) = 'real' AND median_s BETWEEN 1e-12 AND 1e6"
    + " AND typeof(spread_s) = 'real' AND spread_s BETWEEN 0 AND 1e6"
    + " AND typeof(repetitions) = 'integer' AND typeof(threads) = 'integer'), 1)"
)
_INSERT = f"INSERT INTO measurements ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"


@dataclass(frozen=True)
class MergeResult:
    """What a merge did: rows added, rows replaced by better ones, rows left as they were."""

    added: int
    replaced: int
    kept: int


def default_path() -> Path:
    """Return the store used by default: ``$XDG_CACHE_HOME/phantom/kernels.sqlite``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "phantom" / "kernels.sqlite"


class KernelStore:
    """A kernel store, opened or created at *path*.

    Writers wait for each other (WAL journal); readers never wait.  Raises StoreError for a file that is no
    kernel store, is
    damaged, or was written by a newer version; the file is left untouched.
    """

    def __init__(self, path: Path | str, *, create: bool = True) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        if not self.path.exists():
            if not create:
                raise StoreError(f"{self.path}: no such kernel store")
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"{self.path}: cannot create its folder: {error.strerror}") from None
        elif not self.path.is_file():
            raise StoreError(self._broken("it is not a file"))
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
            )
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA trusted_schema = OFF")
            self._check(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except StoreError:
            if connection is not None:
                connection.close()
            raise
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise StoreError(self._broken(str(error))) from error
        return connection

    def _broken(self, what: str) -> str:
        remedy = "nothing was changed. Move the file away or give another --store"
        return f"{self.path}: not a usable kernel store ({what}); {remedy}"

    def _check(self, connection: sqlite3.Connection) -> None:
        """Create the schema in an empty file; refuse what is not ours."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = {
                row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if application == 0 and version == 0 and not tables:
                connection.execute(f"CREATE TABLE measurements (id INTEGER PRIMARY KEY, {_COLUMNS})")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif application != _APPLICATION_ID:
                raise StoreError(self._broken("a database of another program"))
            elif version > SCHEMA_VERSION:
                raise StoreError(
                    self._broken(
                        f"schema {version}, this version reads up to {SCHEMA_VERSION}: update phantom"
                    )
                )
            elif "measurements" not in tables:
                raise StoreError(self._broken("its table is missing"))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreError(self._broken(f"damaged: {problem}"))
        for row in connection.execute(_IMPOSSIBLE):
            self._row(row)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> KernelStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(self._broken(str(error))) from error

    def find(
        self, key: str, device: str, *, threads: int = 0, torch: str | None = None
    ) -> Measurement | None:
        """Return the measurement of *key* on *device*: of this *torch* version, else the latest."""
        with self._lock:
            try:
                rows = self._connection.execute(
                    f"{_SELECT} WHERE key = ? AND device = ? AND threads = ?",
                    (key, device, threads),
                ).fetchall()
            except sqlite3.Error as error:
                raise StoreError(self._broken(str(error))) from error
        found = [self._row(row) for row in rows]
        return max(found, key=lambda m: (m.torch == torch, m.measured_at, m.torch), default=None)

    def add(self, measurement: Measurement) -> MergeResult:
        """Keep one measurement (see :meth:`add_all`)."""
        return self.add_all([measurement])

    def add_all(self, measurements: Iterable[Measurement]) -> MergeResult:
        """Keep *measurements* in one transaction.

        Of two of the same kernel and device the one with more repetitions stays.
        """
        added = replaced = kept = 0
        with self._transaction() as connection:
            for m in measurements:
                same = (m.key, m.device, m.threads, m.torch, m.runtime)
                old = connection.execute(
                    "SELECT id, repetitions FROM measurements"
                    " WHERE key = ? AND device = ? AND threads = ? AND torch = ? AND runtime = ?",
                    same,
                ).fetchone()
                if old is not None and old[1] >= m.repetitions:
                    kept += 1
                    continue
                if old is not None:
                    connection.execute("DELETE FROM measurements WHERE id = ?", (old[0],))
                    replaced += 1
                else:
                    added += 1
                connection.execute(_INSERT, tuple(asdict(m)[name] for name in _NAMES))
        return MergeResult(added, replaced, kept)

    def measurements(self, *, device: str | None = None, text: str | None = None) -> list[Measurement]:
        """Return what is stored, ordered by device and key; of one *device*, with *text* in the key."""
        query = f"{_SELECT} WHERE 1"
        values: list[str] = []
        if device is not None:
            query += " AND device = ?"
            values.append(device)
        if text is not None:
            query += " AND instr(key, ?) > 0"
            values.append(text)
        with self._lock:
            try:
                rows = self._connection.execute(
                    query + " ORDER BY device, key, torch, runtime, threads", values
                ).fetchall()
            except sqlite3.Error as error:
                raise StoreError(self._broken(str(error))) from error
        return [self._row(row) for row in rows]

    def _row(self, row: tuple[Any, ...]) -> Measurement:
        """A stored row; SQLite keeps any value in any column, and the file may be somebody else's."""
        return _checked(dict(zip(_NAMES, row)), printable(str(self.path)))

    def merge(self, other: KernelStore) -> MergeResult:
        """Take over what *other* has."""
        return self.add_all(other.measurements())

    def export_text(self) -> str:
        """Return everything as JSON lines, a header first; the same store gives the same text."""
        header = json.dumps({"phantom_kernels": SCHEMA_VERSION})
        return (
            "\n".join([header, *(json.dumps(asdict(m), sort_keys=True) for m in self.measurements())]) + "\n"
        )

    def import_text(self, text: str, *, source: str = "input") -> MergeResult:
        """Take over exported JSON lines.  Raises StoreError naming the line; then nothing of it is kept."""
        return self.add_all(list(_read_lines(text, source)))


def _read_lines(text: str, source: str) -> Iterator[Measurement]:
    lines = text.splitlines()
    try:
        version = parse_json(lines[0], source)["phantom_kernels"] if lines else None
    except (OutsideError, KeyError, TypeError):
        version = None
    if version is None:
        raise StoreError(f"{source}: not an export of a kernel store (its first line is not a header)")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{source}: export of schema {version}; this version reads {SCHEMA_VERSION}")
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            yield _checked(parse_json(line, where), where)
        except OutsideError as error:
            raise StoreError(str(error)) from None


def _checked(values: Any, where: str) -> Measurement:
    """Makes a measurement of a row or line from outside. Raises StoreError naming the field."""
    if not isinstance(values, dict):
        raise StoreError(f"{where}: not a measurement (expected a map)")
    if set(values) != set(_NAMES):
        odd = sorted(set(values) ^ set(_NAMES))
        raise StoreError(f"{where}: not a measurement ({', '.join(odd)} missing or unknown)"[:300])
    for name, (allowed, holds) in _ALLOWED.items():
        if not holds(values[name]):
            raise StoreError(f"{where}: {name} is {values[name]!r:.60}; it must be {allowed}")
    return Measurement(**values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and printable(value) is value


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_count(value: Any, low: int) -> bool:
    return isinstance(value, int) and _is_number(value, low, 1 << 40)


_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("key", "device", "torch", "measured_at"), ("a text", _is_text)),
    "runtime": ("a text", lambda value: value == "" or _is_text(value)),
    "kind": ('"cuda" or "cpu"', lambda value: value in ("cuda", "cpu")),
    "threads": ("a whole number from 0", lambda value: _is_count(value, 0)),
    "clock_hz": (
        "null or a number of Hz from 1 to 1e12",
        lambda value: value is None or _is_number(value, 1, 1e12),
    ),
    "median_s": ("a number of seconds from 1e-12 to 1e6", lambda value: _is_number(value, 1e-12, 1e6)),
    "spread_s": ("a number of seconds from 0 to 1e6", lambda value: _is_number(value, 0, 1e6)),
    "repetitions": ("a whole number from 1", lambda value: _is_count(value, 1)),
    "warmup": ("a whole number from 0", lambda value: _is_count(value, 0)),
}
