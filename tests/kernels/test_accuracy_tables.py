"""Tables of measurements that nobody fitted: read, priced, and summed up by table, GPU and class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantom.kernels.accuracy.__main__ import main
from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow, summarize
from phantom.kernels.accuracy.tables import read_folder

AIC = """system,lib,libver,gemm_dtype,m,n,k,time_us,tflops
h100_sxm,trtllm,1.0,bfloat16,4096,4096,4096,200.0,687
h100_sxm,trtllm,1.0,fp8,4096,4096,4096,140.0,982
h100_sxm,trtllm,1.0,int4_wo,16,4096,4096,10.0,1
"""
SIMUMAX = """gpu,op,shape,efficiency,peak_tflops,tflops,source
B200-SXM-180GB,matmul,"b=1, m=4096, k=8192, n=8192, layout=NT, accumulate=True, out_dtype=fp32",0.5,2250,1125,
B200-SXM-180GB,another,"batch=1, seq_len=4096",0.5,2250.0,1125,x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aic_gemm_sample.csv").write_text(AIC)
    (tmp_path / "simumax_op_efficiency.csv").write_text(SIMUMAX)
    return tmp_path


def test_rows_are_priced_by_class(folder: Path) -> None:
    rows = read_folder(folder)
    checked = {row.klass: row for row in rows if isinstance(row, CheckedRow)}
    assert set(checked) == {
        "bf16 products, m >= 1024",
        "fp8 products, m >= 1024",
        "bf16 products, weight gradients",
    }
    gradient = checked["bf16 products, weight gradients"]
    assert gradient.measured_s == pytest.approx(2 * 4096 * 8192 * 8192 / 1125e12)
    assert [row.reason for row in rows if isinstance(row, SkippedRow)] == ["no model of int4_wo"]


def test_a_row_that_holds_the_cast_is_priced_with_it(folder: Path) -> None:
    (folder / "aic_gemm_sample.csv").write_text(
        AIC.splitlines()[0] + "\nh100_sxm,trtllm,1.0,fp8,65536,128,8192,1000.0,1\n"
    )
    row = next(row for row in read_folder(folder) if isinstance(row, CheckedRow))
    assert row.predicted_s > 3 * 65536 * 8192 / 3.35e12  # the cast alone


def test_summary() -> None:
    def row(predicted_s: float) -> CheckedRow:
        return CheckedRow(table="t", gpu="g", klass="c", what="", measured_s=1.0, predicted_s=predicted_s)

    (summary,) = summarize([row(0.9), row(1.02), row(1.3)])
    assert summary.as_json() == {
        "table": "t", "gpu": "g", "class": "c", "rows": 3, "median": 10.0, "p90": 30.0, "worst": 30.0,
        "bias": 2.0,
    }  # fmt: skip


def test_command_prints_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["accuracy", "--data", str(folder), "--json", "--worst", "1"])
    main()
    out = capsys.readouterr()
    entries = json.loads(out.out)
    assert {"table", "gpu", "class", "rows", "median", "p90", "worst", "bias"} == set(entries[0])
    assert "skipped: 1 rows of aic_gemm_sample.csv" in out.err


def test_a_folder_without_tables_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["accuracy", "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"none of the tables .*aic_gemm_sample\.csv"):
        main()
