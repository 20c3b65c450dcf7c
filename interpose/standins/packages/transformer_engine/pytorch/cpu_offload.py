"""Activations kept on the host: not covered, unless switched off."""

from contextlib import nullcontext
from typing import Any

from interpose.standins.surface import missing_names, not_covered


def get_cpu_offload_context(enabled: bool = False, *_: Any, **__: Any) -> tuple[Any, Any]:
    """A context for the forward pass and what to call after each layer."""
    if enabled:
        raise not_covered("transformer_engine.pytorch", "get_cpu_offload_context")
    return nullcontext(), lambda tensor: tensor


def is_cpu_offload_enabled() -> bool:
    """Never."""
    return False


def mark_activation_offload(*_: Any) -> None:
    """Nothing is kept on the host."""


__getattr__ = missing_names(__name__)
