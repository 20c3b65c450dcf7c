"""Errors of the predictor on published rows that were not used for fitting stay within the stated limits."""

from __future__ import annotations

import statistics

import pytest

from phantom.kernels.accuracy.page import Result, attention_results, gemm_results, memory_results, page
from phantom.kernels.calibrate.published_rows import training_rows


def _median(results: list[Result]) -> float:
    assert results
    return statistics.median(abs(r.error) for r in results)


@pytest.fixture(scope="module")
def products() -> list[Result]:
    return [r for r in gemm_results() if not r.fitting]


@pytest.mark.parametrize("gpu", ["NVIDIA P100 SXM2", "NVIDIA V100 SXM2", "NVIDIA T4"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_by_shape(products: list[Result], gpu: str, dtype: str) -> None:
    if (gpu, dtype) == ("NVIDIA P100 SXM2", "float16"):
        pytest.skip("no published rows")
    assert _median([r for r in products if r.group[:2] == (gpu, dtype)]) <= 0.15


@pytest.mark.parametrize("gpu", ["NVIDIA A100 SXM", "NVIDIA H100 SXM"])
def test_attention(gpu: str) -> None:
    assert _median([r for r in attention_results() if not r.fitting and r.group[0] == gpu]) <= 0.12


def test_memory_bound_kernels() -> None:
    assert _median([r for r in memory_results() if not r.fitting]) <= 0.15


def test_the_page_lists_every_row_kind() -> None:
    text = page()
    for word in ("Matrix products", "Attention", "Memory-bound", "Rows kept for checking", "Not checked"):
        assert word in text


def test_training_rows_for_fitting_are_few_and_of_one_source() -> None:
    rows = training_rows()
    assert 0 < len(rows) <= 12
    assert {row["source"] for row in rows} == {"mosaicml/llm-foundry"}
