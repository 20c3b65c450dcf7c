"""Data parallelism (plain, FSDP1, FSDP2) and the optimizers that belong to it."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

PARALLEL = ("dp", "plain", "fsdp1", "fsdp2", "hsdp")


def fully_shard_stage(stage: nn.Module, arguments: argparse.Namespace, device: torch.device) -> nn.Module:
    """Return *stage* (built on the meta device) under FSDP, a unit per block, or `plain` in bf16."""
    if arguments.parallel == "plain":
        return stage.bfloat16().to_empty(device=device)
    reduce_dtype = torch.float32 if arguments.reduce == "fp32" else torch.bfloat16
    if arguments.parallel == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
        again = arguments.sharding == "full"
        for block in stage.blocks:
            fully_shard(block, mp_policy=policy, reshard_after_forward=again)
        fully_shard(stage, mp_policy=policy)
        return stage.to_empty(device=device)
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    strategy = ShardingStrategy.FULL_SHARD if arguments.sharding == "full" else ShardingStrategy.SHARD_GRAD_OP
    mesh = None
    if arguments.parallel == "hsdp":
        strategy = ShardingStrategy.HYBRID_SHARD
        nodes = dist.get_world_size() // arguments.gpus_per_node
        mesh = init_device_mesh("cuda", (nodes, arguments.gpus_per_node))
    return FullyShardedDataParallel(
        stage,
        device_mesh=mesh,
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({type(stage.blocks[0])}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype),
        backward_prefetch=BackwardPrefetch[f"BACKWARD_{arguments.prefetch.upper()}"],
        param_init_fn=lambda module: module.to_empty(device=device, recurse=False),
        limit_all_gathers=True,
        use_orig_params=True,
        device_id=device,
    )


def adamw(parameters: list[Tensor], kind: str) -> torch.optim.Optimizer:
    """Return AdamW as one fused kernel, with `_foreach_` kernels, or in a loop over the parameters."""
    return torch.optim.AdamW(parameters, lr=1e-4, fused=kind == "fused", foreach=kind == "foreach")


class MasterOptimizer:
    """Mixed precision as Megatron has it: half-precision parameters, fp32 master copies and moments.

    Gradients are averaged over the data-parallel *group* after the backward pass in half-precision buckets.
    With *sharded* (ZeRO-1) every rank updates its part of the flat master copy and gathers the rest.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        group: dist.ProcessGroup | None,
        sharded: bool,
        fp16: bool,
        everyone: dist.ProcessGroup | None,
        bucket: int = 250_000_000,
    ) -> None:
        self.parameters, self.group, self.fp16, self.everyone = parameters, group, fp16, everyone
        self.bucket = bucket
        self.ranks = 1 if group is None else dist.get_world_size(group)
        self.sharded = sharded and self.ranks > 1
        first = parameters[0]
        if self.sharded:
            total = sum(p.numel() for p in parameters)
            self.part = -(-total // self.ranks)
            self.flat = torch.empty(self.part * self.ranks, dtype=first.dtype, device=first.device)
            offset = 0
            for parameter in parameters:
                size = parameter.numel()
                parameter.data = self.flat[offset : offset + size].view_as(parameter)
                offset += size
            self.masters = [torch.empty(self.part, dtype=torch.float32, device=first.device)]
        else:
            self.masters = [p.detach().float() for p in parameters]
        self.adam = adamw([m.requires_grad_() for m in self.masters], "fused")

    def _reduced(self) -> list[Tensor]:
        """Average the gradients over the group by buckets; return them as fp32 parts of the masters."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        if self.ranks > 1:
            buckets: list[list[Tensor]] = [[]]
            filled = 0
            for gradient in gradients:
                if filled and filled + gradient.numel() > self.bucket:
                    buckets.append([])
                    filled = 0
                buckets[-1].append(gradient)
                filled += gradient.numel()
            for bucket in buckets:
                flat = torch.cat([gradient.flatten() for gradient in bucket])
                flat.div_(self.ranks)
                dist.all_reduce(flat, group=self.group)
                pieces = [
                    p.view_as(g) for p, g in zip(flat.split([g.numel() for g in bucket]), bucket, strict=True)
                ]
                torch._foreach_copy_(bucket, pieces)
        if not self.sharded:
            return [gradient.float() for gradient in gradients]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        rank = dist.get_rank(self.group)
        mine = torch.zeros(self.part, dtype=torch.float32, device=flat.device)
        piece = flat[rank * self.part : (rank + 1) * self.part]
        mine[: piece.numel()].copy_(piece)
        return [mine]

    def step(self) -> None:
        """Average, unscale, clip by the global norm, update the masters, copy them back."""
        gradients = self._reduced()
        if self.fp16:
            found = torch.zeros(1, device=gradients[0].device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.ones_like(found))
            if dist.is_initialized():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)
            if found.item():
                return
        norm = torch.stack(torch._foreach_norm(gradients)).square().sum()
        if self.everyone is not None:
            dist.all_reduce(norm, group=self.everyone)
        torch._foreach_mul_(gradients, (1.0 / (norm.sqrt() + 1e-6)).clamp(max=1.0))
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.adam.step()
        if self.sharded:
            half = self.masters[0].detach().to(self.flat.dtype)
            dist.all_gather_into_tensor(self.flat, half, group=self.group)
        else:
            torch._foreach_copy_([p.data for p in self.parameters], [m.detach() for m in self.masters])
        for master in self.masters:
            master.grad = None
