"""Fitting finds constants that were used to make the cases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from phantom.kernels.calibrate import constant_fit as fit
from phantom.kernels.calibrate.case_prices import memory_case_s
from phantom.kernels.calibrate.published_rows import MemoryCase, gemm_cases, training_rows
from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.rule_context import Context


def _start() -> dict:
    return json.loads((fit._PATH.parent / "constants_start.json").read_text())["architectures"]


def test_a_known_saturation_is_found_again() -> None:
    gpu = gpu_by_name("a100")
    data = _start()
    data["ampere"]["memory"] = {"saturation": 0.71}
    truth = Context(gpu, build_constants("ampere", data))
    cases = [MemoryCase(str(n), gpu, "quantize", 2.0**n, 1.0, "made up") for n in range(20, 31)]
    cases = [replace(case, seconds=memory_case_s(case, truth)) for case in cases]
    data = _start()
    median = fit.fit_group(data, "ampere", "memory", ("saturation",), cases, memory_case_s)
    assert data["ampere"]["memory"]["saturation"] == pytest.approx(0.71, rel=0.02)
    assert median < 0.02


def test_constants_written_are_read_again(tmp_path: Path) -> None:
    document = {"architectures": _start()}
    fit.write(document, tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text()) == document


def test_one_shape_is_never_both_for_fitting_and_for_checking() -> None:
    parts: dict[tuple, set[bool]] = {}
    for case in gemm_cases():
        parts.setdefault(tuple((s.m, s.n, s.k) for s in case.shapes), set()).add(case.is_fitting)
    assert all(len(part) == 1 for part in parts.values())


def test_training_rows_give_a_share_of_the_step_below_one() -> None:
    for row in training_rows():
        gpu = gpu_by_name(row["gpu"])
        constants = build_constants(gpu.architecture, json.loads(fit._PATH.read_text())["architectures"])
        assert 0.7 < fit.training_ratio(row, Context(gpu, constants)) < 1.05
