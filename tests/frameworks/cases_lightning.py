"""Lightning: started once per rank, and once per node as its users do (it starts the other ranks itself)."""

from __future__ import annotations

from .case import Case


def lightning(name: str, feature: str, *options: str, small: bool = False, **environment: str) -> Case:
    """lightning_train.py: 20 steps on two devices of one node."""
    return Case(
        name=f"lightning-{name}",
        framework="Lightning",
        version="lightning",
        feature=feature,
        command=["python", "{workloads}/lightning_train.py"],
        environment=environment,
        options=list(options),
        small=small,
        steps=20,
    )


CASES = (
    lightning("ddp", "DDP, once per rank", small=True),
    lightning("ddp-node", "DDP, Lightning starts the second rank", "--launch", "node"),
    lightning("fsdp", "FSDP, once per rank", STRATEGY="fsdp"),
    lightning("fsdp-node", "FSDP, Lightning starts the second rank", "--launch", "node", STRATEGY="fsdp"),
)
