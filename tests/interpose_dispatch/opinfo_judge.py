"""PyTorch's OpInfo database as judge: samples run on CPU and virtual GPU, and metadata must agree."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Their result's shape, or whether they raise, depends on data: values off would judge the guess.
DATA_DEPENDENT = frozenset(
    {
        "__getitem__", "_segment.reduce", "_segment_reduce", "allclose", "argwhere", "bincount",
        "combinations", "corrcoef", "cov", "equal", "histogramdd", "index_put", "item",
        "linalg.eig", "linalg.matrix_rank", "linalg.pinv", "masked_select",
        "nn.functional.ctc_loss", "nn.functional.one_hot", "nonzero", "repeat_interleave",
        "segment_reduce", "tensor_split", "to_sparse", "unique", "unique_consecutive", "where",
    }
)  # fmt: skip


# The CUDA build itself returns other statistics than the CPU: in the accumulation type, in evaluation too.
CUDA_DIFFERS = frozenset(
    {"native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}
)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one sample. `kind`: same, differs, raises, skipped, or cuda (as CUDA, unlike the CPU)."""

    op: str
    sample: int
    part: str
    kind: str
    text: str = ""


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _difference(host: Any, device: Any) -> str:
    """What differs between the metadata of two results; empty if nothing does."""
    host_leaves, device_leaves = pytree.tree_leaves(host), pytree.tree_leaves(device)
    if len(host_leaves) != len(device_leaves):
        return f"{len(host_leaves)} results on the CPU, {len(device_leaves)} on the GPU"
    for index, (a, b) in enumerate(zip(host_leaves, device_leaves)):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return f"result {index}: {type(a).__name__} and {type(b).__name__}"
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b):
                return f"result {index}: {type(a).__name__} and {type(b).__name__}"
            continue
        if a.layout != b.layout:
            return f"result {index}: layout {a.layout} and {b.layout}"
        if a.shape != b.shape:
            return f"result {index}: shape {tuple(a.shape)} and {tuple(b.shape)}"
        if a.dtype != b.dtype:
            return f"result {index}: {a.dtype} and {b.dtype}"
        if b.device.type != "cuda":
            return f"result {index}: on {b.device}"
    return ""


def _call(op: Any, sample: Any) -> Any:
    return op(sample.input, *sample.args, **sample.kwargs)


def _grads(result: Any, sample: Any) -> list[torch.Tensor | None] | None:
    outputs = [t for t in _tensors(result) if t.requires_grad]
    inputs = [
        t for t in _tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad and t.is_leaf
    ]
    if not outputs or not inputs:
        return None
    seeds = [torch.ones_like(t) for t in outputs]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


def _to_cuda(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach()
    if (
        plain.layout == torch.strided
        and plain.untyped_storage().nbytes() > plain.numel() * plain.element_size()
    ):
        # as_strided may look at the whole storage, so all of it moves.
        whole = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage())
        return whole.cuda().as_strided(plain.shape, plain.stride(), plain.storage_offset())
    return plain.cuda()


@dataclass(frozen=True)
class _Moved:
    input: Any
    args: Any
    kwargs: Any


def _on_device(op: Any, sample: Any) -> _Moved:
    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _to_cuda(value).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device("cuda")
        return value

    if op.name == "tensor_split":  # a GPU wants the split points on the host
        return _Moved(move(sample.input), sample.args, sample.kwargs)
    return _Moved(*(pytree.tree_map(move, part) for part in (sample.input, sample.args, sample.kwargs)))


def judge(op: Any, dtype: torch.dtype, *, limit: int | None = None) -> Iterator[Verdict]:
    """Verdicts of the operator's sample inputs: one for the forward result and one for the gradients of each.

    A sample that the CPU itself refuses is skipped.
    """
    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    torch.manual_seed(0)
    autograd = bool(op.supports_autograd) and dtype in op.supported_backward_dtypes("cpu")
    samples = op.sample_inputs("cpu", dtype, requires_grad=autograd)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(samples):
            if limit is not None and index >= limit:
                return
            on_device = _on_device(op, sample)
            try:
                host = _call(op, sample)
            except Exception as error:
                yield Verdict(name, index, "forward", "skipped", f"{type(error).__name__}: {error}")
                continue
            try:
                device = _call(op, on_device)
            except Exception as error:
                yield Verdict(
                    name, index, "forward", "raises", f"{type(error).__name__}: {error}".splitlines()[0][:300]
                )
                continue
            difference = _difference(host, device)
            wrong = "cuda" if op.name in CUDA_DIFFERS else "differs"
            yield Verdict(name, index, "forward", wrong if difference else "same", difference)
            if not autograd or difference:
                continue
            try:
                host_grads = _grads(host, sample)
            except Exception:
                continue
            if host_grads is None:
                continue
            try:
                device_grads = _grads(device, on_device)
            except Exception as error:
                yield Verdict(
                    name,
                    index,
                    "backward",
                    "raises",
                    f"{type(error).__name__}: {error}".splitlines()[0][:300],
                )
                continue
            difference = _difference(host_grads, device_grads)
            yield Verdict(name, index, "backward", "differs" if difference else "same", difference)


def chosen(dtype: torch.dtype, *, every: int = 1, offset: int = 0) -> list[Any]:
    """The operators of the database that the CPU supports in `dtype`; each `every`-th of them."""
    from torch.testing._internal.common_methods_invocations import op_db

    with_dtype = [op for op in op_db if dtype in op.supported_dtypes("cpu")]
    return with_dtype[offset::every]
