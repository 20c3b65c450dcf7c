"""Stand-in of xformers.ops.fmha.attn_bias: masks as descriptions, nothing of the size of the scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interpose.standins.surface import missing_names


class AttentionBias:
    """A mask that a kernel knows how to apply."""


class LowerTriangularMask(AttentionBias):
    """Causal, aligned at the top left."""


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Causal, aligned at the bottom right."""


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """A window around the diagonal."""

    window_left: int
    window_right: int


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(AttentionBias):
    """Causal with a window."""

    _window_size: int


@dataclass
class _SeqLenInfo:
    """Where sequences begin in a packed dimension."""

    seqstart: Any
    seqstart_py: list[int]
    max_seqlen: int
    min_seqlen: int

    @classmethod
    def from_seqlens(cls, seqlens: Iterable[int]) -> "_SeqLenInfo":
        lengths = [int(n) for n in seqlens]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        tensor = torch.tensor(starts, dtype=torch.int32)
        return cls(tensor, starts, max(lengths, default=0), min(lengths, default=0))

    def on(self, device: Any) -> Any:
        """The offsets on the device, copied there once."""
        if self.seqstart.device != device:
            self.seqstart = self.seqstart.to(device, non_blocking=True)
        return self.seqstart

    def split(self, x: Any, batch_sizes: Sequence[int] | None = None) -> list[Any]:
        """The sequences of a packed tensor [1, tokens, ...]."""
        parts = zip(self.seqstart_py[:-1], self.seqstart_py[1:])
        return [x[:, start:end] for start, end in parts]


@dataclass
class BlockDiagonalMask(AttentionBias):
    """Every query sees the keys of its own sequence."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **_: Any) -> Any:
        """From the lengths of the sequences."""
        queries = _SeqLenInfo.from_seqlens(q_seqlen)
        keys = queries if kv_seqlen is None or list(kv_seqlen) == list(q_seqlen) else None
        return cls(q_seqinfo=queries, k_seqinfo=keys or _SeqLenInfo.from_seqlens(kv_seqlen or []))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Packs tensors [batch, length, ...] into one, with their mask."""
        sizes = [tensor.shape[0] for tensor in tensors]
        lengths = [tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = sizes
        packed = torch.cat([tensor.reshape([1, -1, *tensor.shape[2:]]) for tensor in tensors], dim=1)
        return mask, packed

    def split(self, tensor: Any) -> list[Any]:
        """The tensors that were packed."""
        if self._batch_sizes is None:
            return self.q_seqinfo.split(tensor)
        found, at, sequence = [], 0, 0
        for size in self._batch_sizes:
            length = self.q_seqinfo.seqstart_py[sequence + 1] - self.q_seqinfo.seqstart_py[sequence]
            found.append(tensor[:, at : at + size * length].reshape([size, length, *tensor.shape[2:]]))
            at, sequence = at + size * length, sequence + size
        return found

    split_queries = split

    def make_causal(self) -> "BlockDiagonalCausalMask":
        """The same sequences, causal."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> "BlockDiagonalCausalFromBottomRightMask":
        """The same sequences, causal from the bottom right."""
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Causal within each sequence."""


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Causal within each sequence, aligned at the bottom right."""


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """Causal within each sequence, with a window."""

    _window_size: int = 0


_CAUSAL = (
    LowerTriangularMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalFromBottomRightMask,
)


def causal_and_window(bias: Any) -> tuple[bool, tuple[int, int]]:
    """What a mask asks of the kernel: causal, and the window (-1: unbounded)."""
    if isinstance(bias, LocalAttentionFromBottomRightMask):
        return False, (bias.window_left, bias.window_right)
    window = getattr(bias, "_window_size", 0)
    return isinstance(bias, _CAUSAL), (window - 1, 0) if window else (-1, -1)


__getattr__ = missing_names(__name__)
