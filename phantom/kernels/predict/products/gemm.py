"""Time of a matrix product: output tiles over SMs in waves, limited by arithmetic, by what one SM can load,
or by DRAM.

The best of a fixed set of tile shapes and split-K factors is taken, as cuBLAS's heuristics try to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from phantom.kernels.gpu import GpuSpec

# (rows, columns) of output tiles that cuBLAS and CUTLASS kernels use, by generation (constant ``tile_set``):
# 1 up to Turing, 2 from Ampere on.
_TILES_1: tuple[tuple[int, int], ...] = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32),
    (32, 128), (64, 32), (32, 64),
    (32, 32), (128, 16), (16, 128),
)  # fmt: skip
_TILES_2: tuple[tuple[int, int], ...] = (
    (256, 256), (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (192, 128), (128, 192), (128, 64),
    (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (128, 16), (16, 128), (64, 16), (16, 64),
    (64, 8), (128, 8),
)  # fmt: skip
TILE_SETS = {1: _TILES_1, 2: _TILES_2}
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
    separate: bool = False
    """Every group is a call of its own: TransformerEngine's loop over cuBLAS, on a few streams."""
    group_rows: tuple[int, ...] = ()
    """Rows of each group of a grouped product, where known; *m* is their mean, *batch* their number."""
    dram_bytes: float | None = None
    """What is moved if not A, B and C once each: an implicit product's A is not in memory."""

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    def tiles(self, tm: int, tn: int) -> int:
        """Return the number of output tiles of *tm* by *tn*; every group is padded to whole tiles."""
        rows = sum(math.ceil(r / tm) for r in self.group_rows) or math.ceil(self.m / tm) * self.batch
        return rows * math.ceil(self.n / tn)

    @property
    def accumulator_bytes(self) -> float:
        """Bytes of a C that is read and written."""
        return 2.0 * self.m * self.n * self.batch * self.out_bytes

    @property
    def traffic_bytes(self) -> float:
        """Bytes of A, B and C, each once, unless told otherwise."""
        if self.dram_bytes is not None:
            return self.dram_bytes
        c = self.m * self.n * self.out_bytes * (2 if self.reads_c else 1)
        return self.batch * ((self.m * self.k + self.k * self.n) * self.in_bytes + c)


@dataclass(frozen=True)
class _Rates:
    """What one product runs at: the GPU's rates under the constants of its kernel class."""

    sm_flops_per_s: float
    sm_load_bytes_per_s: float
    block_load_bytes_per_s: float
    dram_bytes_per_s: float
    tile_s: float
    split_s: float
    norm: float
    small_tile: float
    quantization: float
    partial_sum_rate: float
    max_splits: float
    epilogue_s: float


def gemm_s(
    shape: GemmShape,
    *,
    peak_flops_per_s: float,
    gpu: GpuSpec,
    constants: Mapping[str, float],
    repeated: bool = False,
) -> float:
    """Return the seconds of one GEMM kernel (with its split-K reduction).

    For a tile (tm, tn) and a split of K, tiles * splits work items are dealt to the SMs.  An item takes the
    longer of its arithmetic, 2 tm tn k / (peak per SM * efficiency), and its loads, (tm + tn) k bytes / (load
    rate of one SM); the two are joined by a p-norm, and so is the whole with the DRAM time.  *repeated*: a
    benchmark that calls one product again and again, so that operands stay in L2 (``warm`` and ``warm_l2``).
    Constants:

    ``efficiency`` of the largest tile in the limit of large k; ``small_tile`` the area in elements at which
    a tile has half of it; ``balance_flops_per_byte`` the peak arithmetic of one SM over the bytes it can
    load; ``block_gb_per_s`` what one thread block can load with its few requests in flight (1 to 8 blocks
    share an SM); ``quantization`` how far the last wave counts whole (1: one tile per block, less for
    persistent and stream-K kernels); ``tile_us`` prologue and epilogue of a tile; ``dram`` the share of peak
    bandwidth; ``floor_us``; ``split_us`` of a split's reduction and ``partial_sum_rate`` how much faster than
    DRAM its partial sums move; ``epilogue`` the share of reading and writing an accumulated C that the
    arithmetic waits for; ``call_us`` from one call to the next where every group is a call of its own;
    ``max_splits`` the most splits that the library has; ``norm`` the p; ``unaligned`` the rate where a
    leading dimension is no multiple of 16 bytes; ``grouped`` of grouped products; ``rate_nn``, ``rate_nt``,
    ``rate_tt`` the rates of those layouts against TN; ``tile_set`` which tiles there are.
    """
    floor_s = constants["floor_us"] * 1e-6
    if min(shape.m, shape.n, shape.k, shape.batch) <= 0:
        return floor_s
    rates = _rates(shape, peak_flops_per_s, gpu, constants)
    traffic = shape.traffic_bytes
    warm = constants.get("warm", 0.0) if repeated else 0.0
    if warm:
        traffic *= 1.0 - warm * math.exp(-((traffic / (constants["warm_l2"] * gpu.l2_bytes)) ** 2))
    dram_s = traffic / rates.dram_bytes_per_s
    tiles = TILE_SETS[int(constants.get("tile_set", 1))]
    best_s = min(_tile_s(shape, tm, tn, gpu.sm_count, dram_s, rates) for tm, tn in tiles)
    if shape.separate:
        best_s = max(best_s, shape.batch * constants.get("call_us", 0.0) * 1e-6)
    return floor_s + best_s


def _rates(shape: GemmShape, peak_flops_per_s: float, gpu: GpuSpec, constants: Mapping[str, float]) -> _Rates:
    rate = peak_flops_per_s * constants["efficiency"] * constants.get(f"rate_{shape.layout.lower()}", 1.0)
    if not shape.aligned:
        rate *= constants["unaligned"]
    if shape.grouped:
        rate *= constants["grouped"]
    dram_bytes_per_s = gpu.memory_bytes_per_s * constants["dram"]
    accumulator_s = shape.accumulator_bytes / dram_bytes_per_s
    return _Rates(
        sm_flops_per_s=rate / gpu.sm_count,
        sm_load_bytes_per_s=peak_flops_per_s / gpu.sm_count / constants["balance_flops_per_byte"],
        block_load_bytes_per_s=constants["block_gb_per_s"] * 1e9,
        dram_bytes_per_s=dram_bytes_per_s,
        tile_s=constants["tile_us"] * 1e-6,
        split_s=constants["split_us"] * 1e-6,
        norm=constants["norm"],
        small_tile=constants["small_tile"],
        quantization=constants.get("quantization", 1.0),
        partial_sum_rate=constants.get("partial_sum_rate", 1.0),
        max_splits=constants.get("max_splits", math.inf),
        epilogue_s=constants.get("epilogue", 0.0) * accumulator_s if shape.reads_c else 0.0,
    )


def _tile_s(shape: GemmShape, tm: int, tn: int, sm_count: int, dram_s: float, rates: _Rates) -> float:
    """Return the seconds with tiles of *tm* by *tn*, at the best split of K."""
    k_step = max(1, int(_K_STEP_BYTES / shape.in_bytes))
    k_padded = math.ceil(shape.k / k_step) * k_step
    grid = shape.tiles(tm, tn)
    area = tm * tn
    tile_efficiency = area / (area + rates.small_tile)
    residents = max(1, min(8, 256 * 128 // area))
    norm = rates.norm
    best = math.inf
    for splits in SPLITS:
        if splits > 1 and (k_padded // splits < 4 * k_step or grid >= 2 * sm_count):
            break
        if splits > rates.max_splits:
            break
        k = math.ceil(k_padded / splits / k_step) * k_step
        waves = math.ceil(grid * splits / sm_count)
        items = float(waves)
        if waves > 1:  # a persistent kernel's last wave is partly shared among the SMs
            items = rates.quantization * waves + (1.0 - rates.quantization) * grid * splits / sm_count
        math_s = items * 2.0 * area * k / (rates.sm_flops_per_s * tile_efficiency) + rates.epilogue_s
        block_bytes = (tm + tn) * k * shape.in_bytes
        load_s = items * block_bytes / rates.sm_load_bytes_per_s
        resident_waves = math.ceil(grid * splits / (sm_count * residents))
        stream_s = resident_waves * block_bytes / rates.block_load_bytes_per_s
        inner_s = (math_s**norm + load_s**norm + stream_s**norm + dram_s**norm) ** (1.0 / norm)
        total_s = inner_s + waves * rates.tile_s
        if splits > 1:
            partial_bytes = 4.0 * shape.m * shape.n * shape.batch * (splits + 1)
            total_s += rates.split_s + partial_bytes / (rates.dram_bytes_per_s * rates.partial_sum_rate)
        best = min(best, total_s)
    return best


def product_s(
    shape: GemmShape, *, peak_flops_per_s: float, gpu: GpuSpec, constants: Mapping[str, float]
) -> float:
    """Return the seconds of one GEMM kernel in a training step, at the clock that the power limit allows.

    ``sustained`` is the rate of a long product against a short one's; a product of ``throttle_us`` is half
    way.  Zero: products of every length run at the sustained rate.
    """
    throttled = {**constants, "efficiency": constants["efficiency"] * constants["sustained"]}
    slow_s = gemm_s(shape, peak_flops_per_s=peak_flops_per_s, gpu=gpu, constants=throttled)
    window_s = constants.get("throttle_us", 0.0) * 1e-6
    if not window_s:
        return slow_s
    fast_s = gemm_s(shape, peak_flops_per_s=peak_flops_per_s, gpu=gpu, constants=constants)
    share = fast_s**2 / (fast_s**2 + window_s**2)
    return fast_s + share * (slow_s - fast_s)
