"""Which reader reads which file of a folder of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from phantom.kernels.accuracy import attention_tables, expert_tables, product_tables, trace_tables
from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow

Reader = Callable[[Path], Iterator[CheckedRow | SkippedRow]]

READERS: dict[str, tuple[Reader, ...]] = {
    "aic_gemm_sample.csv": (product_tables.serving_products,),
    "aic_attention_prefill_sample.csv": (attention_tables.prefill_attention,),
    "aic_moe_sample.csv": (expert_tables.fused_moe,),
    "aic_deepep_normal_sample.csv": (expert_tables.deepep,),
    "simumax_op_efficiency.csv": (product_tables.training_products, attention_tables.simumax_attention),
    "gemm.csv": (product_tables.published_products,),
    "tracelens_h100_b200_kernels.csv": (product_tables.traced_products, trace_tables.tracelens_memory),
}
"""Readers by file name; a table of several kinds of kernels has several, each takes its rows."""


def read_folder(folder: Path) -> list[CheckedRow | SkippedRow]:
    """Every row of the known tables in *folder*.  Raises FileNotFoundError if it has none of them."""
    found = [name for name in READERS if (folder / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{folder}: none of the tables {', '.join(sorted(READERS))}")
    return [row for name in found for reader in READERS[name] for row in reader(folder / name)]
