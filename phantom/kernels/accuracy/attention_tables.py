"""Readers of tables of fused attention."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.accuracy.engine_gpus import engine_gpu
from phantom.kernels.calibrate.case_prices import attention_case_s
from phantom.kernels.calibrate.published_rows import AttentionCase, te_attention_case
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.engine_calls.engine_constants import engine_constants
from phantom.kernels.predict.engine_calls.prefill_attention import prefill_attention_s
from phantom.kernels.predict.fused_attention import AttentionShape
from phantom.kernels.predict.rule_context import Context

_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
_ITEM_BYTES = {"bfloat16": 2.0, "fp8": 1.0}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def prefill_attention(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Attention of a prompt by an inference engine: aiconfigurator's table."""
    for row in _rows(path):
        gpu = engine_gpu(row["system"])
        kernel = f"{row['lib']}.{row['kernel_source']}.{row['attn_dtype']}.{row['kv_cache_dtype']}"
        constants = engine_constants(gpu, f"prefill.{kernel}") if gpu is not None else None
        if gpu is None or constants is None:
            yield SkippedRow(path.name, f"no constants of {row['system']} {kernel}")
            continue
        shape = _prefill_shape(row)
        predicted_s = prefill_attention_s(
            shape, cache_item_bytes=_ITEM_BYTES[row["kv_cache_dtype"]], gpu=gpu, constants=constants,
            peak_flops_per_s=gpu.fp8_flops_per_s if row["attn_dtype"] == "fp8" else gpu.bf16_flops_per_s,
        )  # fmt: skip
        yield CheckedRow(
            table=path.name, gpu=gpu.name,
            klass=f"prefill attention, {row['attn_dtype']}, {row['kv_cache_dtype']} cache",
            what=f"{kernel}: batch {shape.batch}, {shape.heads}/{shape.kv_heads} heads of {shape.head_dim}, "
            f"{shape.q_len}",
            measured_s=float(row["time_us"]) * 1e-6, predicted_s=predicted_s,
        )  # fmt: skip


def _prefill_shape(row: Mapping[str, str]) -> AttentionShape:
    batch, length, heads, kv_heads, head_dim = (
        int(row[c]) for c in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    return AttentionShape(
        batch, heads, kv_heads, length, length, head_dim, head_dim, True, False, _DTYPES[row["attn_dtype"]],
        False,
    )  # fmt: skip


_SIMUMAX_GPUS = {"B200-SXM-180GB": "b200", "A100-PCIe-80GB": "a100-pcie"}
_SIMUMAX_COLUMNS = {
    "batch": "batch", "seq": "seq_len", "heads": "head_num", "kv_heads": "kv_head_num",
    "qk_dim": "qk_head_dim", "v_dim": "v_head_dim",
}  # fmt: skip


def simumax_attention(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """Calls of TransformerEngine's attention module; their TFLOP/s count the whole square."""
    for number, row in enumerate(_rows(path)):
        if not row["op"].startswith("sdp_"):
            continue
        if row["gpu"] not in _SIMUMAX_GPUS:
            yield SkippedRow(path.name, f"no model of {row['gpu']}")
            continue
        settings = dict(part.strip().split("=", 1) for part in row["shape"].split(","))
        case = te_attention_case({
            **{name: settings[column] for name, column in _SIMUMAX_COLUMNS.items()}, "id": str(number),
            "gpu": _SIMUMAX_GPUS[row["gpu"]], "pass": row["op"][4:], "tflops_unmasked": row["tflops"],
            "source": row["source"],
        })  # fmt: skip
        yield _checked(path, case, row["shape"])


def _checked(path: Path, case: AttentionCase, what: str) -> CheckedRow:
    context = Context(case.gpu, constants_for(case.gpu.architecture))
    return CheckedRow(
        table=path.name, gpu=case.gpu.name, klass=f"attention {case.part}, {case.implementation}", what=what,
        measured_s=case.seconds, predicted_s=attention_case_s(case, context),
    )  # fmt: skip
