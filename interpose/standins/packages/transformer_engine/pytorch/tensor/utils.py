"""Helpers for parameters kept in fp8: there are none, so only empty lists are taken."""

from typing import Any

from interpose.standins.surface import missing_names, not_covered


def cast_master_weights_to_fp8(model_weights: Any, *_: Any, **__: Any) -> None:
    """Casts master copies into fp8 parameters."""
    if len(model_weights):
        raise not_covered("transformer_engine.pytorch", "tensor.utils", why="(parameters kept in fp8)")


def replace_raw_data(tensor: Any, new_raw_data: Any) -> None:
    """Moves an fp8 parameter."""
    raise not_covered("transformer_engine.pytorch", "tensor.utils", why="(parameters kept in fp8)")


def post_all_gather_processing(model_weights: Any) -> None:
    """Makes transposes after parameters were gathered."""
    if len(model_weights):
        raise not_covered("transformer_engine.pytorch", "tensor.utils", why="(parameters kept in fp8)")


__getattr__ = missing_names(__name__)
