"""TorchTitan 0.2.2 by its own entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .case import Case


def _assets(folder: Path) -> None:
    from .torchtitan_assets import make_assets

    make_assets(folder)


_COMMON = [
    "--model.hf_assets_path", "./tests/assets/tokenizer",
    "--training.dataset", "c4_test",
    "--training.steps", "3",
    "--training.seq_len", "256",
    "--training.local_batch_size", "4",
    "--lr_scheduler.warmup_steps", "1",
]  # fmt: skip


def titan(
    name: str,
    feature: str,
    *arguments: str,
    model: str = "llama3",
    flavor: str = "debugmodel",
    nodes: int = 1,
    gpus: int = 8,
    launcher: str = "torchrun",
    small: bool = False,
    refused: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: list[str] | None = None,
) -> Case:
    """`torchtitan.train` with a debug model and 3 steps of 4 x 256 tokens per rank."""
    start = {"torchrun": ["torchrun", "-m"], "python": ["python", "-m"]}[launcher]
    chosen = ["--model.name", model, "--model.flavor", flavor]
    return Case(
        name=f"torchtitan-{name}",
        framework="TorchTitan",
        version="torchtitan",
        feature=feature,
        command=[*start, "torchtitan.train", *chosen, *_COMMON, *arguments],
        nodes=nodes,
        gpus_per_node=gpus,
        environment=environment or {},
        options=options or [],
        small=small,
        prepare=_assets,
        refused=refused,
        steps=None if refused else 3,
    )


CASES = (titan("fsdp", "llama3, FSDP2, selective AC", gpus=2, launcher="python", small=True),)
