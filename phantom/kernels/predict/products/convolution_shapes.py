"""Convolutions as implicit matrix products (the form in which cuDNN's tensor-core kernels compute them)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phantom.kernels.predict.products.gemm import GemmShape
from phantom.kernels.request.description import IntList, KernelDescription, TensorMeta


@dataclass(frozen=True)
class ConvolutionShape:
    """One convolution: batch, channels, output positions, filter taps, groups; *dense* says input positions
    per output for strides.

    For a transposed convolution the roles of input and output are exchanged by the reader of the arguments.
    """

    batch: int
    in_channels: int
    out_channels: int
    in_positions: int
    out_positions: int
    taps: int
    groups: int
    dtype: str
    channels_last: bool
    unit_stride: bool

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.in_channels // self.groups <= 4

    def forward(self, item: float) -> GemmShape:
        """Return the product of the forward pass, one per group."""
        return GemmShape(
            self.batch * self.out_positions,
            self.out_channels // self.groups,
            self.in_channels // self.groups * self.taps,
            batch=self.groups, in_bytes=item, out_bytes=item,
        )  # fmt: skip

    def data_gradient(self, item: float) -> GemmShape:
        """Return the product that gives the gradient of the input."""
        return GemmShape(
            self.batch * self.in_positions,
            self.in_channels // self.groups,
            max(1, round(self.out_channels // self.groups * self.taps * self.out_positions /
            max(self.in_positions, 1))),
            batch=self.groups, in_bytes=item, out_bytes=item,
        )  # fmt: skip

    def weight_gradient(self, item: float) -> GemmShape:
        """Return the product that gives the gradient of the weight."""
        return GemmShape(
            self.out_channels // self.groups,
            self.in_channels // self.groups * self.taps,
            self.batch * self.out_positions,
            batch=self.groups, in_bytes=item, out_bytes=item,
        )  # fmt: skip


# op -> (index of input, index of weight, index of stride, index of groups, index of transposed or None)
_FORWARD: dict[str, tuple[int, int, int, int, int | None]] = {
    "convolution": (0, 1, 3, 8, 6), "_convolution": (0, 1, 3, 8, 6), "convolution_overrideable": (0, 1, 3,
    8, 6),
    "cudnn_convolution": (0, 1, 3, 5, None), "cudnn_convolution_relu": (0, 1, 3, 6, None),
    "cudnn_convolution_add_relu": (0, 1, 5, 8, None), "mkldnn_convolution": (0, 1, 4, 6, None),
    "conv1d": (0, 1, 3, 6, None), "conv2d": (0, 1, 3, 6, None), "conv3d": (0, 1, 3, 6, None),
    "miopen_convolution": (0, 1, 4, 6, None), "miopen_depthwise_convolution": (0, 1, 4, 6, None),
    "_conv_depthwise2d": (0, 1, 4, -100, None), "conv_depthwise3d": (0, 1, 4, -100, None),
    "_slow_conv2d_forward": (0, 1, 4, -100, None), "slow_conv3d_forward": (0, 1, 4, -100, None),
    "slow_conv3d": (0, 1, 4, -100, None),
    "slow_conv_dilated2d": (0, 1, 4, -100, None), "slow_conv_dilated3d": (0, 1, 4, -100, None),
    "thnn_conv2d": (0, 1, 4, -100, None),
}  # fmt: skip
_TRANSPOSED: dict[str, tuple[int, int, int, int]] = {
    "cudnn_convolution_transpose": (0, 1, 4, 6), "conv_transpose1d": (0, 1, 3, 6), "conv_transpose2d": (0,
    1, 3, 6),
    "conv_transpose3d": (0, 1, 3, 6), "slow_conv_transpose2d": (0, 1, 4, -100), "slow_conv_transpose3d": (0,
    1, 4, -100),
    "miopen_convolution_transpose": (0, 1, 5, 7),
}  # fmt: skip
_BACKWARD = (
    "convolution_backward",
    "convolution_backward_overrideable",
    "_slow_conv2d_backward",
    "conv_tbc_backward",
)


def convolution_passes(kernel: KernelDescription) -> tuple[ConvolutionShape, tuple[str, ...]] | None:
    """Return the shape and the passes (``forward``, ``data``, ``weight``, ``bias``) of a convolution
    operator.

    None for a convolution form whose arguments are not known here.
    """
    name = kernel.base_name
    if name in ("convolution_backward", "convolution_backward_overrideable"):
        shift = 0 if name == "convolution_backward" else -1
        grad, data, weight = (kernel.need_tensor(i) for i in range(3))
        transposed = bool(kernel.value(7 + shift, False))
        mask = kernel.mask(10 + shift, 3)
        shape = _shape(
            data, grad, weight, kernel.value(4 + shift, (1,)), int(kernel.value(9 + shift, 1)), transposed
        )
        names = ("data", "weight", "bias")
        return shape, tuple(part for part, wanted in zip(names, mask) if wanted)
    if name in _FORWARD and kernel.out_tensors:
        data_i, weight_i, stride_i, groups_i, transposed_i = _FORWARD[name]
        data, weight = kernel.need_tensor(data_i), kernel.need_tensor(weight_i)
        transposed = bool(transposed_i is not None and kernel.value(transposed_i, False))
        groups = (
            data.sizes[1]
            if name in ("_conv_depthwise2d", "conv_depthwise3d")
            else _integer(kernel.value(groups_i, 1))
        )
        shape = _shape(data, kernel.out_tensors[0], weight, kernel.value(stride_i, (1,)), groups, transposed)
        return shape, ("data",) if transposed else ("forward",)
    if name in _TRANSPOSED and kernel.out_tensors:
        data_i, weight_i, stride_i, groups_i = _TRANSPOSED[name]
        data, weight = kernel.need_tensor(data_i), kernel.need_tensor(weight_i)
        groups = _integer(kernel.value(groups_i, 1))
        return _shape(data, kernel.out_tensors[0], weight, kernel.value(stride_i, (1,)), groups, True), (
            "data",
        )
    return None


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _shape(
    data: TensorMeta, result: TensorMeta, weight: TensorMeta, stride: object, groups: int, transposed: bool
) -> ConvolutionShape:
    batched = len(data.sizes) == len(weight.sizes)
    lead = 2 if batched else 1
    if transposed:
        # The transposed convolution is the data gradient of the convolution that goes the other way.
        data, result = result, data
    strides = stride.items if isinstance(stride, IntList) else stride if isinstance(stride, tuple) else (1,)
    return ConvolutionShape(
        batch=data.sizes[0] if batched else 1,
        in_channels=data.sizes[lead - 1],
        out_channels=result.sizes[lead - 1],
        in_positions=math.prod(data.sizes[lead:]),
        out_positions=math.prod(result.sizes[lead:]),
        taps=math.prod(weight.sizes[2:]),
        groups=max(groups, 1),
        dtype=data.dtype,
        channels_last="nhwc" in (data.layout, weight.layout)
        or (len(weight.sizes) == 3 and data.layout == "d"),
        unit_stride=all(s == 1 for s in strides),
    )
