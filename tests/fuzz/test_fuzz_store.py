"""Kernel stores and their exports; kernel files."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.commands import ends_well
from fuzz.limits import FUZZ
from fuzz.mutation import damaged, json_texts
from phantom.kernels.measure.kernel_store import KernelStore, Measurement

ONE = Measurement(
    key="mm(f32[8,8]c, f32[8,8]c)", device="CPU X", kind="cpu", threads=1, torch="2.13.0", runtime="MKL",
    clock_hz=None, median_s=1e-5, spread_s=1e-6, repetitions=20, warmup=2,
    measured_at="2026-11-29T00:00:00+00:00",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bytes of a store of one measurement, good.sqlite."""
    folder = tmp_path_factory.mktemp("store")
    with KernelStore(folder / "made.sqlite") as store:
        store.add(ONE)
    (folder / "made.sqlite").rename(folder / "good.sqlite")
    return folder


@FUZZ
@given(data=st.data())
def test_a_changed_export_is_taken_or_refused_in_one_sentence(folder: Path, data: st.DataObject) -> None:
    header = data.draw(st.sampled_from((b'{"phantom_kernels": 1}',) * 9 + (b'{"phantom_kernels": "1"}',)))
    lines = data.draw(st.lists(json_texts(asdict(ONE)), min_size=1, max_size=3))
    file, store = folder / "lines.jsonl", folder / "import.sqlite"
    file.write_bytes(b"\n".join([header, *lines]))
    ends_well("kernels", "import", str(file), "--store", str(store))
    if store.exists():
        assert ends_well("kernels", "show", "--store", str(store)) is None
        assert ends_well("kernels", "export", "--store", str(store)) is None
        store.unlink()


@FUZZ
@given(data=st.data())
def test_a_damaged_store_is_shown_or_refused_in_one_sentence(folder: Path, data: st.DataObject) -> None:
    store = folder / "damaged.sqlite"
    store.write_bytes(data.draw(damaged((folder / "good.sqlite").read_bytes())))
    for end in ("-wal", "-shm"):
        Path(f"{store}{end}").unlink(missing_ok=True)
    ends_well(
        "kernels",
        *data.draw(st.sampled_from((["show"], ["show", "--json"], ["export"]))),
        "--store",
        str(store),
    )


@FUZZ
@given(data=st.data())
def test_a_changed_kernel_file_is_refused_in_one_sentence(folder: Path, data: st.DataObject) -> None:
    kernel = {"op": "aten::nothing_such", "args": [{"tensor": ["float32", [4, 4], [4, 1]]}], "outputs": []}
    (folder / "kernels.jsonl").write_bytes(data.draw(json_texts(kernel)))
    from phantom.cli.kernels import KernelsError, _read_kernels

    with contextlib.suppress(KernelsError):
        list(_read_kernels((folder / "kernels.jsonl",)))
