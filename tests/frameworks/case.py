"""One row of the frameworks matrix: a command that a framework's user would type, and what it exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of `phantom run [options] -- command` in a folder of its own.

    In `command`, `options` and `environment`, these stand for paths: `{work}` the case's folder (also its
    working directory), `{workloads}` tests/workloads, `{examples}` examples, `{path}` the checkout that
    `needs_path` names.
    """

    name: str
    """Unique over all frameworks; letters, digits and dashes."""
    framework: str
    version: str
    """Name of the installed distribution whose version the table shows."""
    feature: str
    command: list[str]
    nodes: int = 1
    gpus_per_node: int = 2
    cluster: str = "h100-dgx"
    environment: Mapping[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    """More options of `phantom run`."""
    small: bool = False
    """Part of `make test`; takes seconds."""
    needs_path: str | None = None
    """Name of a checkout that is the working directory, given as `NAME=PATH`: megatron, torchtitan, ..."""
    prepare: Callable[[Path], None] | None = None
    """Called with the case's folder before the run: data and tokenizer stand-ins."""
    refused: str | None = None
    """Words of the error with which this feature must end; None where the run must end well."""
    fails_anyway: str | None = None
    """Words of the error with which the framework itself fails, on plain PyTorch on the CPU as here."""
    steps: int | None = None
    """How many steps the job must have had; None if any number above 0 is right."""
    timeout_s: float = 280.0

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node
