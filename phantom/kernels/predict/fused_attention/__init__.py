"""Fused attention kernels: shapes, time and scratch memory."""

from phantom.kernels.predict.fused_attention.arguments import attention_arguments, attention_shape
from phantom.kernels.predict.fused_attention.duration import attention_s
from phantom.kernels.predict.fused_attention.scratch_memory import scratch_bytes
from phantom.kernels.predict.fused_attention.shape import AttentionShape

__all__ = ["AttentionShape", "attention_arguments", "attention_s", "attention_shape", "scratch_bytes"]
