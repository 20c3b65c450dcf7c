"""The options of `phantom run`, as checked values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantom.wire.messages import JobOptions


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One `phantom run`. Sizes and names are the user's; None means the default (docs/commands/run.md)."""

    command: tuple[str, ...]
    cluster: str = "h100-dgx"
    nodes: int = 1
    gpus_per_node: int | None = None
    kernels: str = "auto"
    store: Path | None = None
    server: str | None = None
    await_nodes: str | None = None
    token_file: Path | None = None
    out: Path | None = None
    timeline: bool = False
    timeline_steps: str | None = None
    timeline_ranks: str | None = None
    memory_report: bool = False
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    cpu_time: str = "model"
    unknown_values: str = "healthy"
    values: bool = True
    stand_ins: str = "all"
    moe_routing: str = "balanced"
    launch: str | None = None
    steps: int | None = None
    seed: int = 0
    network_lookahead: bool = True
    quiet: bool = False
    verbose: bool = False
    ranks_to_stderr: bool = False
    """Standard output is for the summary alone."""
    extra: dict[str, Any] = field(default_factory=dict)

    def job_options(self) -> JobOptions:
        """What the simulator is told in OpenJob."""
        return JobOptions(
            kernels=self.kernels,
            store=str(self.store) if self.store is not None else None,
            seed=self.seed,
            timeline=self.timeline,
            network_lookahead=self.network_lookahead,
            cpu_time=self.cpu_time,
            unknown_values=self.unknown_values,
            values=self.values,
            moe_routing=self.moe_routing,
            steps=self.steps,
        )

    def engine_options(self) -> dict[str, Any]:
        """The options that the report shows."""
        return {
            "kernels": self.kernels,
            "store": str(self.store) if self.store is not None else None,
            "seed": self.seed,
            "timeline": self.timeline,
            "network_lookahead": self.network_lookahead,
            "cpu_time": self.cpu_time,
            "unknown_values": self.unknown_values,
            "values": self.values,
            "moe_routing": self.moe_routing,
            "steps": self.steps,
            **self.extra,
        }
