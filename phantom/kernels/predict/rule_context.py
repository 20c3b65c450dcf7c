"""What every prediction rule is given: the GPU, its constants, and the common building blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.predict.constants import Constants
from phantom.kernels.predict.estimate import Estimate
from phantom.kernels.predict.memory_traffic import memory_s, traffic_bytes
from phantom.kernels.predict.products.gemm import GemmShape, gemm_s, product_s
from phantom.kernels.request.description import KernelDescription
from phantom.kernels.request.dtypes import is_complex, math_class

_MAX_PRODUCTS = 65_536


@dataclass(frozen=True)
class Context:
    """A GPU and its fitted constants."""

    gpu: GpuSpec
    constants: Constants
    _products: dict[tuple[GemmShape, str, bool], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    def moved(self, traffic: float, klass: str, *, launches: int = 1, scratch_bytes: int = 0) -> Estimate:
        """Return the cost of moving *traffic* bytes in *launches* kernels of efficiency class *klass*."""
        seconds = memory_s(traffic, gpu=self.gpu, constants=self.constants, klass=klass, launches=launches)
        return Estimate(seconds, launches, int(scratch_bytes))

    def streamed(
        self, kernel: KernelDescription, klass: str, *, launches: int = 1, scratch_bytes: int = 0
    ) -> Estimate:
        """Return the cost of passing every tensor of *kernel* once."""
        return self.moved(traffic_bytes(kernel), klass, launches=launches, scratch_bytes=scratch_bytes)

    def product(
        self, shape: GemmShape, dtype: str, *, tf32: bool = False, burst: bool = False, scaling: str = ""
    ) -> Estimate:
        """Return the cost of one matrix product in *dtype*.

        *tf32* lets fp32 use the TF32 units; *burst*: as in a benchmark of one product, with its operands in
        L2 and at the clock that the power limit does not allow for the length of a training step (constant
        ``sustained``); *scaling*: "block" for fp8 with a scale per block of the inner dimension.
        """
        kind = math_class(dtype)
        if kind == "fp32" and tf32 and self.gpu.tf32_flops_per_s > self.gpu.fp32_flops_per_s:
            kind = "tf32"
        if is_complex(dtype):
            # Four real products.
            shape = replace(shape, k=4 * shape.k, in_bytes=shape.in_bytes / 4)
        group = f"{kind}.{scaling}" if scaling else kind
        known = self._products.get((shape, group, burst))
        if known is None:
            peak = self.gpu.peak_flops_per_s(kind)
            constants = self.constants.group(f"gemm.{group}")
            if burst:
                known = gemm_s(shape, peak_flops_per_s=peak, gpu=self.gpu, constants=constants, repeated=True)
            else:
                known = product_s(shape, peak_flops_per_s=peak, gpu=self.gpu, constants=constants)
            if len(self._products) < _MAX_PRODUCTS:
                self._products[shape, group, burst] = known
        return Estimate(known)

    def cast(self, elements: int, library: str, form: str) -> Estimate:
        """Return the cost of casting *elements* activations from 16 bits to *form* as *library* does it.

        Groups ``cast.LIBRARY.FORM``: ``floor_us`` of its kernels, ``bytes`` passed per element, scales and
        the search for the largest value included.
        """
        constants = self.constants.group(f"cast.{library}.{form}")
        rate = self.gpu.memory_bytes_per_s * constants["dram"]
        return Estimate(constants["floor_us"] * 1e-6 + elements * constants["bytes"] / rate)
