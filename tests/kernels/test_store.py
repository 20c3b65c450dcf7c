"""The kernel store: several writers, merging, foreign and damaged files."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from phantom.kernels.measure.kernel_store import KernelStore, Measurement, StoreError, default_path

ONE = Measurement(
    key="mm(f32[8,8]c, f32[8,8]c)", device="CPU X", kind="cpu", threads=1, torch="2.13.0", runtime="MKL",
    clock_hz=None, median_s=1e-5, spread_s=1e-6, repetitions=20, warmup=2,
    measured_at="2026-11-29T00:00:00+00:00",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "kernels.sqlite")


def test_what_is_added_is_found_again(store: KernelStore) -> None:
    store.add(ONE)
    again = KernelStore(store.path)
    assert again.find(ONE.key, "CPU X", threads=1) == ONE
    assert again.find(ONE.key, "CPU X", threads=2) is None
    assert again.find(ONE.key, "CPU Y", threads=1) is None


def test_the_own_torch_version_is_preferred_then_the_latest(store: KernelStore) -> None:
    newer = replace(ONE, torch="2.14.0", measured_at="2026-12-01T00:00:00+00:00", median_s=2e-5)
    store.add_all([newer, ONE])
    assert store.find(ONE.key, "CPU X", threads=1, torch="2.13.0") == ONE
    assert store.find(ONE.key, "CPU X", threads=1, torch="2.15.0") == newer


def test_more_repetitions_replace_fewer(store: KernelStore) -> None:
    store.add(ONE)
    assert store.add(replace(ONE, median_s=9.0)).kept == 1
    assert store.find(ONE.key, "CPU X", threads=1) == ONE
    better = replace(ONE, repetitions=50, median_s=1.1e-5)
    assert store.add(better).replaced == 1
    assert store.find(ONE.key, "CPU X", threads=1) == better


def test_merge_and_export_agree(store: KernelStore, tmp_path: Path) -> None:
    other = KernelStore(tmp_path / "other.sqlite")
    other.add_all([ONE, replace(ONE, key="add(f32[4]c)")])
    store.add(ONE)
    result = store.merge(other)
    assert (result.added, result.replaced, result.kept) == (1, 0, 1)
    third = KernelStore(tmp_path / "third.sqlite")
    third.import_text(store.export_text())
    assert third.export_text() == store.export_text() == other.export_text()


def test_threads_write_together(store: KernelStore) -> None:
    def write(worker: int) -> None:
        mine = KernelStore(store.path)
        for i in range(20):
            mine.add(replace(ONE, key=f"{worker}-{i}"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.measurements()) == 80


def test_processes_create_and_write_together(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    script = (
        "import sys\nfrom dataclasses import replace\n"
        "from phantom.kernels.measure.kernel_store import KernelStore, Measurement\n"
        f"one = {ONE!r}\nstore = KernelStore({str(path)!r})\n"
        "for i in range(15): store.add(replace(one, key=f'{sys.argv[1]}-{i}'))\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", script, str(n)]) for n in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    assert len(KernelStore(path).measurements()) == 45


def test_a_text_file_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 100)
    with pytest.raises(StoreError, match="not a usable kernel store"):
        KernelStore(path)
    assert path.read_text() == "my notes\n" * 100


def test_another_programs_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "foreign.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        KernelStore(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(store: KernelStore) -> None:
    store.close()
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="schema 99"):
        KernelStore(store.path)


def test_a_damaged_file_is_refused_and_untouched(store: KernelStore) -> None:
    store.add_all([replace(ONE, key=f"{i}" * 50) for i in range(400)])
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    data = bytearray(store.path.read_bytes())
    data[4096 : len(data) - 4096] = b"\xff" * (len(data) - 8192)
    store.path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="not a usable kernel store"):
        KernelStore(store.path)
    assert store.path.read_bytes() == bytes(data)


def test_a_bad_import_keeps_nothing(store: KernelStore) -> None:
    store.add(ONE)
    text = store.export_text() + '{"key": 1}\n'
    with pytest.raises(StoreError, match="line 3"):
        store.import_text(text.replace("CPU X", "CPU Z"), source="file.jsonl")
    assert store.measurements() == [ONE]
    with pytest.raises(StoreError, match="not a header"):
        store.import_text("hello\n")


def test_missing_store_is_an_error_when_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such kernel store"):
        KernelStore(tmp_path / "none.sqlite", create=False)


def test_default_path_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_path() == Path("/x/phantom/kernels.sqlite")


def line_of(**changes: object) -> str:
    header = json.dumps({"phantom_kernels": 1})
    return header + "\n" + json.dumps({**asdict(ONE), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"median_s": float("inf")},
        {"median_s": float("nan")},
        {"median_s": -1.0},
        {"median_s": "1"},
        {"median_s": 10**400},
        {"spread_s": -1e-9},
        {"repetitions": 0},
        {"repetitions": 1.5},
        {"repetitions": True},
        {"threads": -1},
        {"clock_hz": "fast"},
        {"kind": "tpu"},
        {"key": ""},
        {"key": ["a"]},
        {"device": None},
        {"torch": "\ud800"},
        {"measured_at": 7},
        {"extra": 1},
    ],
)
def test_an_import_of_impossible_values_is_refused_by_line(
    store: KernelStore, changes: dict[str, object]
) -> None:
    with pytest.raises(StoreError, match=r"file\.jsonl, line 2"):
        store.import_text(line_of(**changes), source="file.jsonl")
    assert store.measurements() == []


@pytest.mark.parametrize("line", ["[" * 100_000, "[]", "1", '"x"', "{}", "null"])
def test_an_import_of_something_else_is_refused_by_line(store: KernelStore, line: str) -> None:
    with pytest.raises(StoreError, match="line 2"):
        store.import_text(json.dumps({"phantom_kernels": 1}) + "\n" + line, source="file.jsonl")
    with pytest.raises(StoreError, match="not a header"):
        store.import_text(line, source="file.jsonl")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("median_s", "soon"),
        ("median_s", float("inf")),
        ("median_s", -1.0),
        ("repetitions", "many"),
        ("key", b"\xff"),
    ],
)
def test_a_store_with_impossible_rows_is_refused_when_it_is_opened(
    store: KernelStore, column: str, value: object
) -> None:
    store.add(ONE)
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"UPDATE measurements SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(StoreError, match=column):
        KernelStore(store.path, create=False)


def test_a_named_pipe_is_not_a_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="it is not a file"):
        KernelStore(tmp_path / "pipe")
