"""Stand-in of flash_attn.layers.rotary."""

from typing import Any

import torch

from interpose.standins import rotary
from interpose.standins.surface import missing_names


def apply_rotary_emb(
    x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, seqlen_offsets: Any = 0,
    cu_seqlens: Any = None, max_seqlen: int | None = None,
) -> Any:  # fmt: skip
    """Rotates a query or key."""
    return rotary.apply(x, cos, sin, inplace=inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Any, cos: Any, sin: Any, cos_k: Any = None, sin_k: Any = None, interleaved: bool = False,
    seqlen_offsets: Any = 0, num_heads_q: int | None = None,
) -> Any:  # fmt: skip
    """Rotates query and key of a packed tensor in place: two of its three parts."""
    return rotary.apply(qkv, cos, sin, inplace=True)


def apply_rotary_emb_kv_(
    kv: Any, cos: Any, sin: Any, interleaved: bool = False, seqlen_offsets: Any = 0
) -> Any:
    """Rotates the key of a packed tensor in place."""
    return rotary.apply(kv, cos, sin, inplace=True)


class RotaryEmbedding(torch.nn.Module):
    """Keeps tables of cosines and sines and rotates query and key by them."""

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
        device: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        half = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", 1.0 / (self.base ** (half / dim)), persistent=False)
        self._length = 0
        self._cos: Any = None
        self._sin: Any = None

    def _tables(self, length: int, device: Any, dtype: Any) -> None:
        if length > self._length or self._cos.device != device or self._cos.dtype != dtype:
            self._length = length
            angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), self.inv_freq)
            self._cos, self._sin = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)

    def forward(
        self, qkv: Any, kv: Any = None, seqlen_offset: Any = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        """The packed tensor, or query and packed key-value, rotated in place."""
        offset = seqlen_offset if isinstance(seqlen_offset, int) else 0
        length = max_seqlen if max_seqlen is not None else qkv.shape[1] + offset
        self._tables(length, qkv.device, qkv.dtype)
        rotated = rotary.apply(qkv, self._cos, self._sin, inplace=True)
        return rotated if kv is None else (rotated, rotary.apply(kv, self._cos, self._sin, inplace=True))


__getattr__ = missing_names(__name__)
