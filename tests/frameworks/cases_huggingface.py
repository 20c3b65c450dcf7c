"""Hugging Face Accelerate and Trainer, by `accelerate launch` and torchrun."""

from __future__ import annotations

from .case import Case

_OFFLINE = {"HF_HUB_OFFLINE": "1"}
_MULTI_GPU = ["accelerate", "launch", "--multi_gpu", "--mixed_precision", "bf16"]


def accelerate(
    name: str, feature: str, *options: str, gpus: int = 2, nodes: int = 1, small: bool = False, **extra: str
) -> Case:
    """accel_train.py: 48 batches of 8, gradients accumulated over two."""
    launch = ["accelerate", "launch", *options] if options else _MULTI_GPU
    return Case(
        name=f"accelerate-{name}",
        framework="Accelerate",
        version="accelerate",
        feature=feature,
        command=[*launch, "{workloads}/accel_train.py"],
        nodes=nodes,
        gpus_per_node=gpus,
        environment=_OFFLINE | extra,
        small=small,
    )


def trainer(
    name: str, feature: str, *launch: str, gpus: int = 2, nodes: int = 1, small: bool = False, **extra: str
) -> Case:
    """hf_trainer.py: a random Llama, 12 steps of two micro-batches."""
    return Case(
        name=f"trainer-{name}",
        framework="Transformers Trainer",
        version="transformers",
        feature=feature,
        command=[*(launch or ("torchrun",)), "{workloads}/hf_trainer.py"],
        nodes=nodes,
        gpus_per_node=gpus,
        environment=_OFFLINE | extra,
        small=small,
        steps=12,
    )


_FSDP = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
         "--fsdp_transformer_layer_cls_to_wrap", "Block", "--mixed_precision", "bf16"]  # fmt: skip
_DEEPSPEED = ["--use_deepspeed", "--zero_stage", "2", "--gradient_accumulation_steps", "2",
              "--mixed_precision", "bf16"]  # fmt: skip

CASES = (
    accelerate("ddp", "DDP, bf16"),
    accelerate("ddp-nodes", "DDP on two nodes", nodes=2),
    accelerate("fsdp1", "FSDP1, plugin in the script", FSDP="1"),
    accelerate("fsdp2", "FSDP2, plugin in the script", FSDP="2", small=True),
    accelerate("fsdp2-options", "FSDP2 by options of accelerate launch", *_FSDP, gpus=4),
    accelerate("deepspeed", "DeepSpeed ZeRO-2 plugin", *_DEEPSPEED),
    accelerate("save", "save_state", SAVE="state"),
    trainer("ddp", "DDP, fused AdamW", small=True),
    trainer("fsdp2", "FSDP2", FSDP="2"),
    trainer("deepspeed3", "DeepSpeed ZeRO-3", DS="3"),
    trainer("checkpointing", "gradient checkpointing, checkpoints", GC="1", SAVE="steps"),
    trainer("accelerate", "accelerate launch, two nodes", "accelerate", "launch", nodes=2),
    trainer("compile", "torch_compile", COMPILE="1"),
    trainer("flash-attention", "flash_attention_2 (stand-in)", ATTN="flash_attention_2"),
    trainer("adam8bit", "adamw_bnb_8bit (stand-in)", OPTIM="adamw_bnb_8bit"),
)
