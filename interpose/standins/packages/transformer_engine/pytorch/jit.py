"""Switches of the library's own compilation."""

from collections.abc import Callable
from typing import Any

from interpose.standins.surface import missing_names


def no_torch_dynamo(recursive: bool = True) -> Callable[[Any], Any]:
    """A decorator that changes nothing here."""
    return lambda function: function


def set_jit_fusion_options() -> None:
    """Nothing to set."""


__getattr__ = missing_names(__name__)
