"""One name for an operator on both sides of an error budget, and the collectives' kinds."""

from __future__ import annotations

_SAME = {
    "cudnn_convolution": "convolution",
    "cudnn_convolution_transpose": "convolution",
    "cudnn_batch_norm": "native_batch_norm",
    "cudnn_batch_norm_backward": "native_batch_norm_backward",
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention_backward": "_scaled_dot_product_flash_attention_backward",
    "_chunk_cat": "chunk_cat",
}
"""What a CUDA device dispatches and what the CPU does (phantom/kernels/measure/cpu_form.py)."""
_KINDS = (
    # In this order: "allreduce" is part of no other name, "reduce" is part of two.
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "p2p"),
    ("send", "p2p"),
    ("recv", "p2p"),
    ("p2p", "p2p"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)


def operator_name(name: str) -> str:
    """Returns the canonical name of an operator: no namespace, no overload."""
    base = name.rpartition("::")[2].partition(".")[0]
    return _SAME.get(base, base)


def collective_kind(name: str) -> str | None:
    """Returns the kind of a collective by what a trace calls it, None for what is none."""
    text = name.lower().replace("_", "")
    return next((kind for mark, kind in _KINDS if mark in text), None)
