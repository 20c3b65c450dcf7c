"""Time of a matrix product: output tiles over SMs in waves, limited by arithmetic, by what one SM can load,
or by DRAM.

The best of a fixed set of tile shapes and split-K factors is taken, as cuBLAS's heuristics try to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from phantom.kernels.gpu import GpuSpec

# (rows, columns) of output tiles that cuBLAS and CUTLASS kernels use; both orders are tried.
TILES: tuple[tuple[int, int], ...] = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32),
    (32, 128), (64, 32), (32, 64),
    (32, 32), (128, 16), (16, 128),
)  # fmt: skip
SPLITS: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_K_STEP_BYTES = 64


@dataclass(frozen=True)
class GemmShape:
    """C[m, n] = A[m, k] B[k, n], *batch* times; bytes per element of the inputs and of the output.

    *layout* is cuBLAS's pair of letters as DeepBench writes them (N or T for A and B, column-major).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    in_bytes: float = 2
    out_bytes: float = 2
    layout: str = "TN"
    reads_c: bool = False
    aligned: bool = True
    grouped: bool = False
    dram_bytes: float | None = None
    """What is moved if not A, B and C once each: an implicit product's A is not in memory."""

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def traffic_bytes(self) -> float:
        """Bytes of A, B and C, each once, unless told otherwise."""
        if self.dram_bytes is not None:
            return self.dram_bytes
        c = self.m * self.n * self.out_bytes * (2 if self.reads_c else 1)
        return self.batch * ((self.m * self.k + self.k * self.n) * self.in_bytes + c)


def gemm_s(
    shape: GemmShape, *, peak_flops_per_s: float, gpu: GpuSpec, constants: Mapping[str, float]
) -> float:
    """Return the seconds of one GEMM kernel (with its split-K reduction).

    For a tile (tm, tn) and a split of K, each SM runs ceil(tiles * splits / SMs) tiles.  A tile takes the
    longer of its
    arithmetic, 2 tm tn k / (peak per SM * efficiency), and its loads, (tm + tn) k bytes / (load rate of one
    SM); the two
    are joined by a p-norm, and so is the whole with the DRAM time.  Constants:

    ``efficiency`` of the largest tile in the limit of large k; ``small_tile`` the area in elements at which
    a tile has
    half of it; ``balance_flops_per_byte`` the peak arithmetic of one SM over the bytes it can load;
    ``block_gb_per_s``
    what one thread block can load with its few requests in flight (1 to 8 blocks share an SM); ``tile_us``
    prologue
    and epilogue of a tile; ``dram`` the share of peak bandwidth; ``floor_us``; ``split_us`` of a split's
    reduction;
    ``norm`` the p; ``unaligned`` the rate where a leading dimension is no multiple of 16 bytes; ``grouped``
    of grouped products; ``rate_nn``,
    ``rate_nt``, ``rate_tt`` the rates of those layouts against TN.
    """
    if min(shape.m, shape.n, shape.k, shape.batch) <= 0:
        return constants["floor_us"] * 1e-6
    k_step = max(1, int(_K_STEP_BYTES / shape.in_bytes))
    k_padded = math.ceil(shape.k / k_step) * k_step
    norm = constants["norm"]
    layout_rate = constants.get(f"rate_{shape.layout.lower()}", 1.0)
    rate = peak_flops_per_s * constants["efficiency"] * layout_rate
    if not shape.aligned:
        rate *= constants["unaligned"]
    if shape.grouped:
        rate *= constants["grouped"]
    sm_flops_per_s = rate / gpu.sm_count
    sm_load_bytes_per_s = peak_flops_per_s / gpu.sm_count / constants["balance_flops_per_byte"]
    dram_bytes_per_s = gpu.memory_bytes_per_s * constants["dram"]
    block_load_bytes_per_s = constants["block_gb_per_s"] * 1e9
    tile_s = constants["tile_us"] * 1e-6
    half_area = constants["small_tile"]
    dram_s = shape.traffic_bytes / dram_bytes_per_s
    best = math.inf
    for tm, tn in TILES:
        grid = math.ceil(shape.m / tm) * math.ceil(shape.n / tn) * shape.batch
        area = tm * tn
        tile_efficiency = area / (area + half_area)
        residents = max(1, min(8, 256 * 128 // area))
        for splits in SPLITS:
            if splits > 1 and (k_padded // splits < 4 * k_step or grid >= 2 * gpu.sm_count):
                break
            k = math.ceil(k_padded / splits / k_step) * k_step
            waves = math.ceil(grid * splits / gpu.sm_count)
            math_s = waves * 2.0 * area * k / (sm_flops_per_s * tile_efficiency)
            block_bytes = (tm + tn) * k * shape.in_bytes
            load_s = waves * block_bytes / sm_load_bytes_per_s
            resident_waves = math.ceil(grid * splits / (gpu.sm_count * residents))
            stream_s = resident_waves * block_bytes / block_load_bytes_per_s
            inner_s = (math_s**norm + load_s**norm + stream_s**norm + dram_s**norm) ** (1.0 / norm)
            total_s = inner_s + waves * tile_s
            if splits > 1:
                reduction_bytes = 4.0 * shape.m * shape.n * shape.batch * (splits + 1)
                total_s += constants["split_us"] * 1e-6 + reduction_bytes / dram_bytes_per_s
            best = min(best, total_s)
    return constants["floor_us"] * 1e-6 + best
