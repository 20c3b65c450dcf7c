"""DeepSpeed by its own launcher and by torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .case import Case


def zero(
    name: str,
    feature: str,
    *arguments: str,
    launcher: tuple[str, ...] = ("deepspeed",),
    nodes: int = 1,
    gpus: int = 2,
    small: bool = False,
    refused: str | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> Case:
    """ds_train.py: 12 steps of two micro-batches, FusedAdam unless the arguments say otherwise."""
    return Case(
        name=f"deepspeed-{name}",
        framework="DeepSpeed",
        version="deepspeed",
        feature=feature,
        command=[*launcher, "{workloads}/ds_train.py", "--torch_adam", "0", *arguments],
        nodes=nodes,
        gpus_per_node=gpus,
        small=small,
        refused=refused,
        prepare=prepare,
        steps=None if refused else 12,
    )


def pipeline(name: str, feature: str, *arguments: str, gpus: int = 4, nodes: int = 1) -> Case:
    """ds_pipeline.py: 4 steps of PipelineModule."""
    return Case(
        name=f"deepspeed-{name}",
        framework="DeepSpeed",
        version="deepspeed",
        feature=feature,
        command=["deepspeed", "{workloads}/ds_pipeline.py", *arguments],
        nodes=nodes,
        gpus_per_node=gpus,
        steps=4,
    )


def _hosts(folder: Path) -> None:
    (folder / "hosts").write_text("worker-1 slots=2\nworker-2 slots=2\n")


_HOSTFILE = ("deepspeed", "--hostfile", "hosts")

CASES = (
    zero("zero0", "no ZeRO, bf16", "--stage", "0"),
    zero("zero1", "ZeRO-1, bf16", "--stage", "1"),
    zero("zero2", "ZeRO-2, bf16", "--stage", "2"),
    zero("zero3", "ZeRO-3, bf16", "--stage", "3", launcher=(), small=True),
    zero("zero1-fp16", "ZeRO-1, fp16 with loss scaling", "--stage", "1", "--dtype", "fp16"),
    zero("zero1-torch-adam", "ZeRO-1, PyTorch's AdamW", "--stage", "1", "--torch_adam", "1"),
    zero("zero2-offload", "ZeRO-2, optimizer on the CPU", "--stage", "2", "--offload"),
    zero("zero3-offload", "ZeRO-3, optimizer on the CPU", "--stage", "3", "--offload"),
    zero("zero3-torchrun", "ZeRO-3, torchrun", "--stage", "3", launcher=("torchrun",), gpus=4, small=True),
    zero("zero3-nodes", "ZeRO-3, two nodes", "--stage", "3", nodes=2, gpus=4),
    zero(
        "zero2-hostfile",
        "ZeRO-2, hostfile and pdsh",
        "--stage",
        "2",
        launcher=_HOSTFILE,
        nodes=2,
        prepare=_hosts,
    ),
    zero("save", "ZeRO-1, save_checkpoint", "--stage", "1", "--save", "checkpoint"),
    pipeline("pipeline", "pipeline engine, 2 stages x 2"),
    pipeline("pipeline-checkpointing", "pipeline engine, activation checkpointing", "--checkpoint", "1"),
    pipeline("pipeline-nodes", "pipeline engine, 4 stages on two nodes", "--stages", "4", nodes=2),
)
