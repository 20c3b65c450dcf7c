"""The central simulator of virtual time: clocks, node graph, matching, store, commit horizon."""

from phantom.engine.engine import Engine
from phantom.engine.errors import JobError
from phantom.engine.options import EngineOptions

__all__ = ["Engine", "EngineOptions", "JobError"]
