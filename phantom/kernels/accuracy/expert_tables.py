"""Readers of tables of experts: fused layers, DeepEP."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.accuracy.engine_gpus import engine_gpu
from phantom.kernels.accuracy.expert_loads import expert_loads
from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.engine_calls.engine_constants import engine_constants
from phantom.kernels.predict.engine_calls.expert_exchange import ExpertExchange, expert_exchange_s
from phantom.kernels.predict.engine_calls.moe_layer import MoeLayer, moe_layer_s

# Of a table's data types: bytes of a weight, of an activation, and which peak.
_FORMATS = {
    "bfloat16": (2.0, 2.0, "bf16"), "fp8": (1.0, 1.0, "fp8"), "fp8_block": (1.0, 1.0, "fp8"),
    "w4a16_mxfp4": (0.53, 2.0, "bf16"), "w4a8_mxfp4_mxfp8": (0.53, 1.03, "fp8"),
    "nvfp4": (0.5625, 0.5625, "fp4"),
}  # fmt: skip
_KERNELS = {
    "moe_torch_flow": "trtllm", "moe_torch_flow_cutlass": "trtllm_cutlass",
    "moe_torch_flow_nongated": "trtllm_cutlass", "moe_torch_flow_triton_fp8_block": "trtllm_triton_fp8_block",
}  # fmt: skip


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def fused_moe(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """A rank's share of a fused layer: aiconfigurator's table; with uneven loads that of the fullest rank."""
    for row in _rows(path):
        gpu, form = engine_gpu(row["system"]), _FORMATS.get(row["moe_dtype"])
        kernel = f"{_KERNELS.get(row['kernel_source'], row['kernel_source'])}.{row['moe_dtype']}"
        constants = engine_constants(gpu, f"moe.{kernel}") if gpu is not None else None
        if gpu is None or form is None or constants is None:
            yield SkippedRow(path.name, f"no constants of {row['system']} {kernel}")
            continue
        layers = _layers(row, form)
        peak = gpu.peak_flops_per_s(form[2])
        predicted_s = sum(
            moe_layer_s(layer, peak_flops_per_s=peak, gpu=gpu, constants=constants) for layer in layers
        ) / len(layers)
        loads = "even" if row["distribution"] == "balanced" else "uneven"
        first = layers[0]
        yield CheckedRow(
            table=path.name, gpu=gpu.name, klass=f"MoE layer, {row['moe_dtype']}, {loads} loads",
            what=f"{kernel} {row['distribution']}: {first.tokens} tokens, {first.hidden} x {first.inter}, "
            f"{first.topk} of {first.experts} experts, {len(first.loads)} here",
            measured_s=float(row["time_us"]) * 1e-6, predicted_s=predicted_s,
        )  # fmt: skip


def _layers(row: Mapping[str, str], form: tuple[float, float, str]) -> list[MoeLayer]:
    tokens, topk, experts, ranks = (int(row[c]) for c in ("num_tokens", "topk", "num_experts", "moe_ep_size"))
    # TensorRT-LLM's Triton kernels compute every choice, whichever rank holds the expert.
    here = 1 if "triton" in row["kernel_source"] else ranks
    return [
        MoeLayer(
            tokens=tokens,
            hidden=int(row["hidden_size"]),
            topk=topk,
            experts=experts,
            loads=loads,
            inter=int(row["inter_size"]) // int(row["moe_tp_size"]),
            weight_bytes=form[0],
            activation_bytes=form[1],
            gated="nongated" not in row["kernel_source"],
        )
        for loads in expert_loads(tokens, topk=topk, experts=experts, ranks=here, kind=row["distribution"])
    ]


def deepep(path: Path) -> Iterator[CheckedRow | SkippedRow]:
    """DeepEP's dispatch (fp8) and combine (bf16): transmission and notification of a call together."""
    for row in _rows(path):
        gpu = engine_gpu(row["system"])
        for part in ("dispatch", "combine"):
            constants = engine_constants(gpu, f"deepep.{part}") if gpu is not None else None
            if gpu is None or constants is None:
                yield SkippedRow(path.name, f"no constants of {row['system']} {part}")
                continue
            if int(row["node_num"]) > 1 and "rdma_gb_per_s" not in constants:
                yield SkippedRow(path.name, f"no constants of {row['system']} between nodes")
                continue
            yield _exchanged(path, row, part, gpu, constants)


def _exchanged(
    path: Path, row: Mapping[str, str], part: str, gpu: GpuSpec, constants: Mapping[str, float]
) -> CheckedRow:
    nodes = int(row["node_num"])
    exchange = ExpertExchange(
        nodes=nodes, ranks_per_node=4 if row["system"].startswith("gb") else 8, tokens=int(row["num_token"]),
        hidden=int(row["hidden_size"]), topk=int(row["num_topk"]), experts=int(row["num_experts"]),
        multiprocessors=int(row[f"{part}_sms"]), combine=part == "combine",
    )  # fmt: skip
    return CheckedRow(
        table=path.name, gpu=gpu.name, klass=f"DeepEP {part}, {nodes} {'node' if nodes == 1 else 'nodes'}",
        what=f"{exchange.tokens} tokens of {exchange.hidden}, {exchange.topk} of {exchange.experts} experts, "
        f"{exchange.multiprocessors} multiprocessors",
        measured_s=(float(row[f"{part}_transmit_us"]) + float(row[f"{part}_notify_us"])) * 1e-6,
        predicted_s=expert_exchange_s(exchange, constants=constants),
    )  # fmt: skip
