"""The cost key: what the duration of a kernel depends on, as a short readable text.

Example: ``mm(bf16[8192,4096]c, bf16[4096,11008]t)``.  Two calls with one key cost the same; keys are the
same across
runs, ranks and torch patch versions, because overload names, values, addresses and generators do not enter.
"""

from __future__ import annotations

import hashlib
from typing import Any

from phantom.kernels.predict.operator_classes import class_of
from phantom.kernels.request.description import IntList, KernelDescription, Opaque, TensorList, TensorMeta
from phantom.kernels.request.dtypes import short_name

# Classes whose time does not depend on integer scalars (fill values, alpha, ranges of random numbers).
_SCALARS_IGNORED = frozenset({"elementwise", "random", "optimizer"})
_SCALARS_KEPT_OPS = frozenset({"pow", "float_power", "native_dropout", "dropout", "multinomial", "glu",
"glu_backward", "gelu",
                               "gelu_backward", "div", "round"})  # fmt: skip
_VALUE_OPS = frozenset({"fill", "full", "full_like", "new_full", "scalar_tensor", "arange", "masked_fill",
"index_fill",
                        "constant_pad_nd", "where", "linspace", "logspace"})  # fmt: skip
# Operators whose dtype, layout and device arguments are told by their outputs (and whose values do not
# matter).
_OUTPUT_DECIDES = frozenset(
    [
        "_to_copy",
        "to",
        "clone",
        "contiguous",
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "eye",
        "linspace",
        "logspace",
        "scalar_tensor",
        "randperm",
        "copy",
        "fill",
        "zero",
        "lift_fresh_copy",
    ]
)
# Facts outside the arguments that change the kernel.
_FLAGS = frozenset({"pinned", "tf32", "conv_tf32", "offsets"})
# Values longer than this enter by a digest.
_MAX_FLAG_TEXT = 48
# Names of arguments whose being zero or not changes the kernel.
_PROBABILITY_CLASSES = frozenset({"attention", "gemm"})


def tensor_text(tensor: TensorMeta) -> str:
    """Return the key form of one tensor: dtype, sizes, stride class, and ``@cpu`` when it is on the host."""
    where = "" if tensor.device == "cuda" else f"@{tensor.device}"
    return f"{short_name(tensor.dtype)}[{','.join(map(str, tensor.sizes))}]{tensor.layout}{where}"


def _list_text(values: TensorList) -> str:
    """Runs of equal tensors are folded: ``{bf16[8]c*3, -}``."""
    parts: list[str] = []
    count, last = 0, None
    for item in [*values.items, TensorMeta("end", (), ())]:
        text = "-" if item is None else ("end" if item.dtype == "end" else tensor_text(item))
        if text == last:
            count += 1
            continue
        if last is not None:
            parts.append(last if count == 1 else f"{last}*{count}")
        count, last = 1, text
    return "{" + ",".join(parts) + "}"


def cost_key(kernel: KernelDescription) -> str:
    """Return the canonical key of *kernel*."""
    if kernel.namespace == "triton":
        return _triton_key(kernel)
    klass = class_of(kernel)
    keep_scalars = klass not in _SCALARS_IGNORED or kernel.base_name in _SCALARS_KEPT_OPS
    keep_ints = keep_scalars and kernel.base_name not in _VALUE_OPS
    parts: list[str] = []
    output_decides = kernel.base_name in _OUTPUT_DECIDES
    for argument in kernel.input_arguments:
        if isinstance(argument, TensorMeta):
            parts.append(tensor_text(argument))
        elif output_decides:
            parts.append("-")
        elif isinstance(argument, TensorList):
            parts.append(_list_text(argument))
        elif isinstance(argument, IntList):
            parts.append("(" + ",".join(map(str, argument.items)) + ")" if keep_ints else "(*)")
        elif argument is None or isinstance(argument, Opaque):
            parts.append("-")
        elif isinstance(argument, bool):
            parts.append(("T" if argument else "F") if keep_scalars else "b")
        elif isinstance(argument, str):
            parts.append(repr(argument) if keep_scalars else "s")
        elif isinstance(argument, float):
            if kernel.base_name in ("pow", "float_power"):
                parts.append(f"{argument:g}")
            else:
                parts.append("0." if argument == 0.0 and klass in _PROBABILITY_CLASSES else "f")
        else:
            parts.append(str(argument) if keep_ints else "n")
    while parts and parts[-1] in ("-", "f", "n", "b", "s"):
        parts.pop()
    known = ",".join(tensor_text(t) for t in kernel.out_tensors) if _outputs_matter(kernel) else ""
    if kernel.name.endswith("_backward") and None in kernel.outs:
        # An output mask may come as the outputs that are not there.
        known += ";outs=" + "".join("0" if out is None else "1" for out in kernel.outs)
    flags = "".join(f";{name}={_flag_text(value)}" for name, value in kernel.extra if name in _FLAGS)
    prefix = "" if kernel.namespace == "aten" else f"{kernel.namespace}::"
    return f"{prefix}{kernel.name}({', '.join(parts)}){'->' + known if known else ''}{flags}"


def _flag_text(value: Any) -> str:
    text = str(value)
    if len(text) <= _MAX_FLAG_TEXT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _triton_key(kernel: KernelDescription) -> str:
    """A Triton kernel's name says nothing about its work: what was counted in it does."""
    tensors = ",".join(map(tensor_text, kernel.in_tensors))
    facts = ";".join(f"{name}={_fact_text(value)}" for name, value in kernel.extra)
    return f"triton::{kernel.name}({tensors};{facts})"


def _fact_text(value: Any) -> str:
    return "x".join(map(_fact_text, value)) if isinstance(value, tuple) else str(value)


def _outputs_matter(kernel: KernelDescription) -> bool:
    """Outputs follow from the arguments except for conversions, factories and data-dependent sizes."""
    if not kernel.out_tensors:
        return False
    if not kernel.in_tensors or kernel.namespace != "aten":
        return True
    first = kernel.in_tensors[0]
    return any(out.dtype != first.dtype or out.layout != first.layout or out.device != first.device
               for out in kernel.out_tensors) or class_of(kernel) in ("index", "sort", "copy")  # fmt: skip
