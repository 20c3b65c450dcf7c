"""`phantom kernels`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantom.cli.kernels import kernels
from phantom.kernels import CostModel
from phantom.kernels.measure.kernel_store import KernelStore
from phantom.kernels.request.description import KernelDescription, contiguous, encode_kernel


def _run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(kernels, list(args))
    return result.exit_code, result.output


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    x = contiguous("float32", 64)
    lines = [
        json.dumps(encode_kernel(KernelDescription(op, (x,), (x,))))
        for op in ("aten::neg", "aten::view", "aten::exp")
    ]
    (tmp_path / "kernels.jsonl").write_text("\n".join(lines))
    store = tmp_path / "a.sqlite"
    status, text = _run(
        "measure",
        str(tmp_path / "kernels.jsonl"),
        "--device",
        "cpu",
        "--store",
        str(store),
        "--budget",
        "0.01",
    )
    assert status == 0, text
    assert "2 measured, 0 known, 0 failed" in text
    return store


def test_measure_show_export_import_merge(measured: Path, tmp_path: Path) -> None:
    status, text = _run("show", "--store", str(measured))
    assert status == 0
    assert "neg(f32[64]c)" in text
    assert "2 measurement(s)" in text
    assert "exp(" not in _run("show", "neg", "--store", str(measured))[1]
    exported = tmp_path / "out.jsonl"
    assert _run("export", str(exported), "--store", str(measured))[0] == 0
    assert _run("export", str(exported), "--store", str(measured))[0] == 2
    other = tmp_path / "b.sqlite"
    assert "2 added" in _run("import", str(exported), "--store", str(other))[1]
    assert "0 added, 0 replaced, 2 kept" in _run("merge", str(other), "--store", str(measured))[1]
    assert KernelStore(other).export_text() == exported.read_text()
    rows = [json.loads(line) for line in _run("show", "--json", "--store", str(measured))[1].splitlines()]
    assert {row["key"] for row in rows} == {"neg(f32[64]c)", "exp(f32[64]c)"}


def test_what_a_model_was_asked_can_be_measured(tmp_path: Path) -> None:
    x = contiguous("float32", 64)
    model = CostModel("h100", mode="predict")
    model.cost(KernelDescription("aten::neg", (x,), (x,)))
    model.cost(KernelDescription("aten::view", (x,), (x,)))
    assert model.save_requests(tmp_path / "kernels.jsonl") == 2
    status, text = _run(
        "measure",
        str(tmp_path / "kernels.jsonl"),
        "--device",
        "cpu",
        "--budget",
        "0.01",
        "--store",
        str(tmp_path / "a"),
    )
    assert status == 0, text
    assert "1 measured" in text


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_missing_store_is_bad_usage(command: str, tmp_path: Path) -> None:
    status, text = _run(command, "--store", str(tmp_path / "none.sqlite"))
    assert status == 2
    assert "no such kernel store" in text


def test_a_foreign_file_is_bad_usage(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("hello " * 1000)
    status, text = _run("merge", str(path), "--store", str(tmp_path / "a.sqlite"))
    assert status == 2
    assert "not a usable kernel store" in text


def test_a_bad_kernel_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"op": "aten::neg", "args": []}\nnonsense\n')
    status, text = _run("measure", str(path), "--device", "cpu", "--store", str(tmp_path / "a.sqlite"))
    assert status == 2
    assert "line 2" in text
