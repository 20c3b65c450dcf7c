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
    fails_anyway: str | None = None,
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
        fails_anyway=fails_anyway,
        steps=None if refused or fails_anyway else 3,
    )


def checkout(name: str, feature: str, *arguments: str, environment: Mapping[str, str]) -> Case:
    """`./run_train.sh` in a checkout of tag v0.2.2, as its README has it."""
    return Case(
        name=f"torchtitan-{name}",
        framework="TorchTitan",
        version="torchtitan",
        feature=feature,
        command=["./run_train.sh", "--training.steps", "3", *arguments],
        gpus_per_node=8,
        environment=environment,
        needs_path="torchtitan",
        steps=3,
    )


REPLICATE = "--parallelism.data_parallel_replicate_degree"
SHARD = "--parallelism.data_parallel_shard_degree"
TENSOR = "--parallelism.tensor_parallel_degree"
PIPELINE = "--parallelism.pipeline_parallel_degree"
SCHEDULE = "--parallelism.pipeline_parallel_schedule"
CONTEXT = "--parallelism.context_parallel_degree"
EXPERT = "--parallelism.expert_parallel_degree"
AC = "--activation_checkpoint.mode"
PROFILE = [
    "--profiling.enable_profiling", "--profiling.profile_freq", "3", "--profiling.profiler_warmup", "1",
    "--profiling.enable_memory_snapshot", "--checkpoint.enable", "--checkpoint.interval", "2",
]  # fmt: skip

CASES = (
    titan("fsdp", "llama3, FSDP2, selective AC", gpus=2, launcher="python", small=True),
    titan("fsdp-8", "llama3, FSDP2, torchrun"),
    titan("fsdp-nodes", "llama3, FSDP2 over two nodes", nodes=2, gpus=4),
    titan("hsdp", "llama3, HSDP: sharded in the node", REPLICATE, "2", SHARD, "4", nodes=2, gpus=4),
    titan("ddp", "llama3, DDP", REPLICATE, "4", SHARD, "1", gpus=4),
    titan("tp", "llama3, TP 4 x FSDP 2", TENSOR, "4"),
    titan(
        "async-tp",
        "llama3, async TP, which wants compile: TorchTitan 0.2.2's TP does not compile on torch 2.13",
        TENSOR,
        "2",
        "--parallelism.enable_async_tensor_parallel",
        "--compile.enable",
        gpus=2,
        launcher="python",
        fails_anyway="'Tensor' object has no attribute '_local_tensor'",
    ),
    titan(
        "float8",
        "llama3, float8 linear layers (torchao)",
        "--model.converters",
        "quantize.linear.float8",
        "--quantize.linear.float8.filter_fqns",
        "output",
        gpus=2,
        launcher="python",
    ),
    titan(
        "float8-compile",
        "llama3, float8 linear layers, compiled",
        "--model.converters",
        "quantize.linear.float8",
        "--quantize.linear.float8.filter_fqns",
        "output",
        "--compile.enable",
        gpus=2,
        launcher="python",
    ),
    titan("pp-1f1b", "llama3, PP 4, 1F1B", PIPELINE, "4", SCHEDULE, "1F1B", gpus=4, launcher="python"),
    titan(
        "pp-interleaved",
        "llama3, PP 2, interleaved 1F1B",
        PIPELINE,
        "2",
        SCHEDULE,
        "Interleaved1F1B",
        gpus=2,
        launcher="python",
    ),
    titan(
        "pp-zero-bubble",
        "llama3, PP 2, zero bubble",
        PIPELINE,
        "2",
        SCHEDULE,
        "InterleavedZeroBubble",
        AC,
        "none",
        gpus=2,
        launcher="python",
    ),
    titan(
        "pp-zbv",
        "llama3, PP 2, ZBV zero bubble",
        PIPELINE,
        "2",
        SCHEDULE,
        "ZBVZeroBubble",
        AC,
        "none",
        gpus=2,
        launcher="python",
    ),
    titan(
        "3d",
        "llama3, PP 2 x TP 2 x FSDP 2, two nodes",
        PIPELINE,
        "2",
        SCHEDULE,
        "1F1B",
        TENSOR,
        "2",
        nodes=2,
        gpus=4,
    ),
    titan("cp", "llama3, CP 2 x FSDP 2", CONTEXT, "2", gpus=4),
    titan("ac-full", "llama3, full AC", AC, "full", gpus=2, launcher="python"),
    titan("ac-none", "llama3, no AC", AC, "none", gpus=2, launcher="python"),
    titan("compile", "llama3, compiled model and loss", "--compile.enable", gpus=2, launcher="python"),
    titan(
        "checkpoint",
        "llama3, checkpoints",
        "--checkpoint.enable",
        "--checkpoint.interval",
        "2",
        gpus=2,
        launcher="python",
    ),
    titan("profiling", "llama3, profiler, memory snapshot, checkpoints", *PROFILE, gpus=2, launcher="python"),
    titan("moe", "deepseek_v3, FSDP2", model="deepseek_v3", gpus=2, launcher="python"),
    titan("moe-ep", "deepseek_v3, EP 4", EXPERT, "4", model="deepseek_v3", gpus=4),
    titan(
        "moe-zipf",
        "deepseek_v3, EP 2, zipf routing",
        EXPERT,
        "2",
        model="deepseek_v3",
        gpus=2,
        launcher="python",
        options=["--moe-routing", "zipf:1"],
        small=True,
    ),
    titan(
        "moe-tp-ep",
        "deepseek_v3, TP 2, EP 4, two nodes",
        TENSOR,
        "2",
        EXPERT,
        "4",
        model="deepseek_v3",
        nodes=2,
        gpus=4,
    ),
    titan("llama4", "llama4 MoE, FSDP2, EP 2", EXPERT, "2", model="llama4", gpus=2, launcher="python"),
    titan(
        "qwen3-moe",
        "qwen3 MoE, FSDP2, EP 2",
        EXPERT,
        "2",
        model="qwen3",
        flavor="debugmodel_moe",
        gpus=2,
        launcher="python",
    ),
    checkout("run-train", "llama3 debug_model.toml as it is, run_train.sh", environment={"NGPU": "8"}),
    checkout(
        "run-train-moe",
        "deepseek_v3 debug_model.toml as it is, run_train.sh",
        environment={
            "NGPU": "8",
            "CONFIG_FILE": "./torchtitan/models/deepseek_v3/train_configs/debug_model.toml",
        },
    ),
)
