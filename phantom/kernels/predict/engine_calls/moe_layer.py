"""A fused mixture-of-experts layer of TensorRT-LLM: routing, permutation, grouped products by load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantom.kernels.gpu import GpuSpec

# Output tiles (rows, columns) of CUTLASS's and TensorRT-LLM's grouped kernels; the fastest is taken, as their
# autotuners do.
_TILES = ((128, 256), (128, 128), (256, 128), (64, 256), (64, 128), (128, 64), (32, 128), (16, 128), (64, 64))
_MANY_WAVES = 4.0  # from here on a part-filled last wave counts half


@dataclass(frozen=True, kw_only=True)
class MoeLayer:
    """One rank's share of a layer: *loads* are the rows of each expert that it holds.

    *tokens* all tokens of the call, each routed to *topk* of *experts*; *inter* the intermediate size of this
    rank. Bytes are those of an element of the weights and of the activations that the products read.
    """

    tokens: int
    hidden: int
    inter: int
    topk: int
    experts: int
    loads: tuple[float, ...]
    weight_bytes: float
    activation_bytes: float
    gated: bool = True


def moe_layer_s(
    layer: MoeLayer, *, peak_flops_per_s: float, gpu: GpuSpec, constants: Mapping[str, float]
) -> float:
    """Return the seconds of one layer on one rank.

    Two grouped products (see :func:`grouped_product_s`), and what goes around them: ``permute_passes``
    over the rows' inputs, ``activation_passes`` over the intermediate, ``finalize_passes`` over the rows'
    and the tokens' outputs, all at the share ``dram`` of the memory's bandwidth; ``route_ns`` per choice,
    ``token_ns`` per token, ``expert_ns`` per expert, ``local_expert_ns`` per expert of this rank, and
    ``floor_us``.
    """
    rows = sum(layer.loads)
    up = (2 if layer.gated else 1) * layer.inter
    seconds = grouped_product_s(layer, up, layer.hidden, peak_flops_per_s, gpu, constants)
    seconds += grouped_product_s(layer, layer.hidden, layer.inter, peak_flops_per_s, gpu, constants)
    moved = constants["permute_passes"] * rows * layer.hidden * (2.0 + layer.activation_bytes)
    moved += constants["activation_passes"] * rows * (2.0 * up + layer.inter * layer.activation_bytes)
    moved += constants["finalize_passes"] * 2.0 * layer.hidden * (rows + layer.tokens)
    seconds += moved / (gpu.memory_bytes_per_s * constants["dram"])
    nanoseconds = constants["route_ns"] * layer.tokens * layer.topk + constants["token_ns"] * layer.tokens
    nanoseconds += constants["expert_ns"] * layer.experts + constants["local_expert_ns"] * len(layer.loads)
    return seconds + nanoseconds * 1e-9 + constants["floor_us"] * 1e-6


def grouped_product_s(
    layer: MoeLayer, columns: int, depth: int, peak_flops_per_s: float, gpu: GpuSpec,
    constants: Mapping[str, float],
) -> float:  # fmt: skip
    """Return the seconds of one product per expert, rows of its load: output tiles in waves, or memory.

    A tile has ``efficiency`` of its share of the peak, half of it at an area of ``small_tile`` elements,
    and costs ``tile_us`` besides; arithmetic and traffic join by a norm of exponent ``norm``.
    """
    loads: Sequence[float] = [load for load in layer.loads if load > 0]
    if not loads:
        return 0.0
    traffic = len(loads) * columns * depth * layer.weight_bytes
    traffic += sum(loads) * (depth * layer.activation_bytes + columns * 2.0)
    memory_s = traffic / (gpu.memory_bytes_per_s * constants["dram"])
    norm = constants["norm"]
    best = math.inf
    for tile_rows, tile_columns in _TILES:
        tiles = sum(math.ceil(load / tile_rows) for load in loads) * math.ceil(columns / tile_columns)
        waves = tiles / gpu.sm_count
        waves = waves + 0.5 if waves > _MANY_WAVES else math.ceil(waves)
        area = tile_rows * tile_columns
        rate = (
            peak_flops_per_s
            / gpu.sm_count
            * constants["efficiency"]
            * area
            / (area + constants["small_tile"])
        )
        arithmetic_s = waves * (2.0 * area * depth / rate + constants["tile_us"] * 1e-6)
        best = min(best, float((arithmetic_s**norm + memory_s**norm) ** (1.0 / norm)))
    return best
