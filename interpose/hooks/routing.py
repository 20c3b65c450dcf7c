"""Tells the value code which router of a mixture of experts chooses: its layer, from the frames that run.

A choice among the scores of a router (`topk`, `argmax`, `max`) is made without scores, by `--moe-routing`;
one among the classes of a classifier is not. The two look alike to an operator, so the modules and functions
on the stack tell.
"""

from __future__ import annotations

import re
import sys
import weakref
from types import FrameType
from typing import Any

from interpose.extension_protocol import Extension

_ROUTER = re.compile(r"rout|gat(e|ing)|moe|expert|sparse|switch|mixture", re.IGNORECASE)
_LAYER_NUMBERS = (("layer_idx", 0), ("layer_id", 0), ("layer_number", 1))
"""By which attributes models number their layers, and from what: Hugging Face, TorchTitan, Megatron."""
_DEPTH = 60
"""Frames looked at: from the operator through wrappers of compiled or checkpointed regions to the layer."""

_order: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_holds_router: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def install(extension: Extension) -> None:
    """Has the extension ask here."""
    extension.set_router_layer(router_layer)


def router_layer() -> int:
    """The layer, counted from 0, whose router runs on this thread; -1 if what runs is no router.

    It is the number the model's own layers carry, else the order in which routers were first seen.
    """
    frame: FrameType | None = sys._getframe()
    routing = False
    innermost: Any = None
    for _ in range(_DEPTH):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            break
        module = _module_of(frame)
        if module is None:
            routing = routing or (innermost is None and _ROUTER.search(frame.f_code.co_name) is not None)
            continue
        if innermost is None:
            innermost = module
            routing = routing or _is_router(module)
        if not routing:
            return -1
        number = _number(module)
        if number is not None:
            return number
    if innermost is None or not routing:
        return -1
    return _order.setdefault(innermost, len(_order))


def _module_of(frame: FrameType) -> Any:
    torch = sys.modules.get("torch.nn")
    if torch is None or "self" not in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        return None
    found = frame.f_locals.get("self")
    return found if isinstance(found, torch.Module) else None


def _is_router(module: Any) -> bool:
    """By the names of its class or of a module within: a compiled layer has no frames of its parts."""
    known = _holds_router.get(module)
    if known is None:
        known = any(_ROUTER.search(type(part).__name__) is not None for part in module.modules())
        _holds_router[module] = known
    return known


def _number(module: Any) -> int | None:
    for name, first in _LAYER_NUMBERS:
        value = module.__dict__.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= first:
            return value - first
    return None
