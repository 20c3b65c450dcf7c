"""Stand-in of flash_attn.bert_padding: plain PyTorch there too."""

from typing import Any

import torch
import torch.nn.functional as F

from interpose.standins.surface import missing_names


class IndexFirstAxis(torch.autograd.Function):
    """Takes rows; backward puts them into zeros."""

    @staticmethod
    def forward(ctx: Any, data: Any, indices: Any) -> Any:
        """Rows of the first axis."""
        ctx.save_for_backward(indices)
        ctx.rows, rest = data.shape[0], data.shape[1:]
        flat = data.reshape(data.shape[0], -1)
        return torch.gather(flat, 0, indices[:, None].expand(-1, flat.shape[1])).reshape(-1, *rest)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradient of the data."""
        (indices,) = ctx.saved_tensors
        rest, flat = grad.shape[1:], grad.reshape(grad.shape[0], -1)
        made = torch.zeros([ctx.rows, flat.shape[1]], device=grad.device, dtype=grad.dtype)
        made.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return made.reshape(ctx.rows, *rest), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Puts rows into zeros; backward takes them."""

    @staticmethod
    def forward(ctx: Any, values: Any, indices: Any, first_axis_dim: int) -> Any:
        """A tensor of `first_axis_dim` rows."""
        ctx.save_for_backward(indices)
        out = torch.zeros(first_axis_dim, *values.shape[1:], device=values.device, dtype=values.dtype)
        out[indices] = values
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradient of the values."""
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Packs the tokens that the mask keeps: (tokens, indices, offsets, longest length, lengths)."""
    all_masks = (attention_mask + unused_mask) if unused_mask is not None else attention_mask
    lengths = all_masks.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(all_masks.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    offsets = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    flat = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(flat, indices), indices, offsets, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Puts packed tokens back into [batch, length, ...]."""
    out = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return out.reshape(batch, seqlen, *hidden_states.shape[1:])


__getattr__ = missing_names(__name__)
