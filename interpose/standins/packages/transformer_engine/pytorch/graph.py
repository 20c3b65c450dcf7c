"""CUDA graphs of modules."""

from collections.abc import Iterable
from typing import Any

from interpose.standins.surface import missing_names, not_covered

_capturing = False


def set_capture_start() -> None:
    """A capture begins."""
    global _capturing
    _capturing = True


def set_capture_end() -> None:
    """A capture is over."""
    global _capturing
    _capturing = False


def is_graph_capturing() -> bool:
    """Whether a graph is being captured."""
    return _capturing


def save_fp8_tensors(modules: Iterable[Any], recipe: Any) -> list[Any]:
    """The scales that the warm-up before a capture would change: none, since scales have no values here."""
    return [None for _ in modules]


def restore_fp8_tensors(modules: Iterable[Any], fp8_tensors: list[Any]) -> None:
    """What save_fp8_tensors returned."""


def make_graphed_callables(*_: Any, **__: Any) -> Any:
    """Captures modules with their pipeline's order: not covered."""
    raise not_covered("transformer_engine.pytorch", "make_graphed_callables")


__getattr__ = missing_names(__name__)
