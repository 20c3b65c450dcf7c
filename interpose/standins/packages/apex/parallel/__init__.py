"""Apex's data parallelism and synchronized batch norm, which PyTorch has taken over."""

from typing import Any

import torch

from interpose.standins.surface import missing_names


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Batch norm over all ranks of a group."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
        self.fuse_relu = fuse_relu

    def forward(self, input: Any) -> Any:
        """Normalizes, and clamps where asked to."""
        out = super().forward(input)
        return torch.relu_(out) if self.fuse_relu else out


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """Averages gradients in buckets while backward runs."""

    def __init__(self, module: Any, message_size: int = 10_000_000, delay_allreduce: bool = False, **_: Any):
        bucket_mb = message_size * 4 / (1 << 20)  # message_size counts elements
        super().__init__(module, bucket_cap_mb=1 << 20 if delay_allreduce else bucket_mb)


def convert_syncbn_model(module: Any, process_group: Any = None, channel_last: bool = False) -> Any:
    """Replaces every batch norm by a synchronized one."""
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)


__getattr__ = missing_names(__name__)
