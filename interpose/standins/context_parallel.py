"""Attention over a sequence that is split over a context-parallel group, as Transformer Engine does it.

Source of the steps and of what each sends: transformer_engine/pytorch/attention/dot_product_attention/
context_parallel.py. With a causal mask every rank holds chunks r and 2n-1-r of 2n, so that the work is equal.

* p2p: n steps; keys and values go round a ring while the step's block is computed, on two streams in turn;
  the outputs are merged by their log-sum-exp. Backward sends keys, values and their gradients.
* all_gather: keys and values of all ranks are gathered; backward reduces and scatters their gradients.
* a2a: all_to_all gives every rank whole sequences of some heads, and the output back.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from interpose.standins import attention, operators
from interpose.standins.attention import AttentionCall


def attend(
    q: Any, k: Any, v: Any, *, call: AttentionCall, kind: str, group: Any, stream: Any, sequence: int
) -> Any:
    """Attention of [.., heads, head size] tensors whose dimension `sequence` (0: sbhd, 1: bshd) is split.

    `kind`: p2p, all_gather, a2a or a2a+p2p (`group` is then the pair of their groups).
    """
    if kind == "a2a":
        return _with_whole_sequences(
            q,
            k,
            v,
            group,
            sequence,
            lambda *parts: attention.FusedAttention.apply(*_bhsd(parts, sequence), None, call),
        )
    if kind == "a2a+p2p":
        inner, outer = group

        def ring(*parts: Any) -> Any:
            return RingAttention.apply(*parts, call, outer, stream, sequence)

        return _with_whole_sequences(q, k, v, inner, sequence, ring, ring_output=True)
    if kind == "all_gather":
        return GatheredAttention.apply(q, k, v, call, group, stream, sequence)
    return RingAttention.apply(q, k, v, call, group, stream, sequence)


def _bhsd(tensors: Any, sequence: int) -> list[Any]:
    """Views as [batch, heads, length, head size]."""
    return [t.permute(1, 2, 0, 3) if sequence == 0 else t.permute(0, 2, 1, 3) for t in tensors]


def _back(tensor: Any, sequence: int) -> Any:
    return tensor.permute(2, 0, 1, 3) if sequence == 0 else tensor.permute(0, 2, 1, 3)


class _AllToAllHeads(torch.autograd.Function):
    """Trades parts of the heads for parts of the sequence (or back): a copy, all_to_all, a copy."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Any, sequence: int, to_heads: bool) -> Any:
        ctx.rest = (group, sequence, to_heads)
        return _exchange(tensor, group, sequence, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        group, sequence, to_heads = ctx.rest
        return _exchange(grad, group, sequence, not to_heads), None, None, None


def _exchange(tensor: Any, group: Any, sequence: int, to_heads: bool) -> Any:
    ranks = dist.get_world_size(group)
    split, join = (2, sequence) if to_heads else (sequence, 2)
    parts = tensor.unflatten(split, (ranks, tensor.shape[split] // ranks)).movedim(split, 0).contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received.movedim(0, join).flatten(join, join + 1).contiguous()


def _with_whole_sequences(
    q: Any, k: Any, v: Any, group: Any, sequence: int, compute: Any, *, ring_output: bool = False
) -> Any:
    parts = [_AllToAllHeads.apply(t, group, sequence, True) for t in (q, k, v)]
    out = compute(*parts)
    if not ring_output:
        out = _back(out, sequence)
    return _AllToAllHeads.apply(out, group, sequence, False)


class _Ring:
    """The neighbours of this rank in a ring over a group, and the sends between them."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.next = dist.get_global_rank(group, (self.rank + 1) % self.size)
        self.previous = dist.get_global_rank(group, (self.rank - 1) % self.size)
        self.batched = self.size == 2 or os.environ.get("NVTE_BATCH_MHA_P2P_COMM", "0") == "1"

    def exchange(self, sent: Any, received: Any) -> list[Any]:
        """Starts sending to the next and receiving from the previous rank."""
        if self.batched:
            return dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, self.next, self.group),
                    dist.P2POp(dist.irecv, received, self.previous, self.group),
                ]
            )
        if self.rank % 2 == 0:
            send = dist.isend(sent, self.next, self.group)
            return [send, dist.irecv(received, self.previous, self.group)]
        receive = dist.irecv(received, self.previous, self.group)
        return [dist.isend(sent, self.next, self.group), receive]


def _block(step: int, rank: int, causal: bool) -> str:
    """What a causal mask leaves of a step's block: its diagonal, the first keys, or the last queries."""
    if not causal:
        return "full"
    if step == 0:
        return "diagonal"
    return "first keys" if step <= rank else "last queries"


def _halves(q: Any, k: Any, v: Any, block: str) -> tuple[Any, Any, Any]:
    """The parts of [batch, heads, length, head size] views that a block needs."""
    if block == "first keys":
        half = k.shape[2] // 2
        return q, k[:, :, :half], v[:, :, :half]
    if block == "last queries":
        return q[:, :, q.shape[2] // 2 :], k, v
    return q, k, v


class RingAttention(torch.autograd.Function):
    """Keys and values travel round the ring."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, call: AttentionCall, group: Any, stream: Any, sequence: int
    ) -> Any:
        """The rank's part of the output."""
        ring = _Ring(group)
        streams = [torch.cuda.current_stream(), stream or torch.cuda.Stream()]
        streams[1].wait_stream(streams[0])
        buffers = [torch.stack([k, v])]
        out = torch.empty_like(q)
        merged_lse: Any = None
        requests: list[Any] = []
        saved: list[Any] = []
        for step in range(ring.size):
            with torch.cuda.stream(streams[step % 2]):
                for request in requests:
                    request.wait()
                current = buffers[step]
                if step < ring.size - 1:
                    buffers.append(torch.empty_like(current))
                    requests = ring.exchange(current, buffers[-1])
                block = _block(step, ring.rank, call.causal)
                step_call = _call(call, block)
                query, key, value = _bhsd((q, current[0], current[1]), sequence)
                query, key, value = _halves(query, key, value, block)
                step_out, rest = attention.forward(query, key, value, step_call)
                lse = rest[0]
                saved.append((block, rest))
                if step == 0:
                    merged_lse = lse
                    operators.attention_merge_kernel([step_out, lse], [out])
                else:
                    streams[step % 2].wait_stream(streams[(step - 1) % 2])
                    operators.attention_merge_kernel([step_out, lse, merged_lse], [out, merged_lse])
        streams[0].wait_stream(streams[1])
        ctx.save_for_backward(q, buffers[-1], out, merged_lse)
        # The log-sum-exp of a step is not needed again: backward takes the merged one.
        ctx.saved = [(block, (None, *rest[1:])) for block, rest in saved]
        ctx.rest = (call, ring, streams[1], sequence)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The keys and values come back the other way round, with the gradients that they gathered."""
        q, kv, out, merged_lse = ctx.saved_tensors
        call, ring, _, sequence = ctx.rest
        grad = grad.contiguous()
        dq = torch.empty_like(q)
        # What travels: keys, values, and behind them their gradients.
        buffers = [torch.empty((2, *kv.shape), dtype=kv.dtype, device=kv.device) for _ in range(2)]
        buffers[0][0].copy_(kv)
        requests: list[Any] = []
        for step in range(ring.size):
            current, other = buffers[step % 2], buffers[(step + 1) % 2]
            for request in requests:
                request.wait()
            first, last = step == 0, step == ring.size - 1
            if first:
                requests = ring.exchange(current[0], other[0])
            elif last:
                requests = ring.exchange(current[1], other[1])
            else:
                requests = ring.exchange(current, other)
            block, rest = ctx.saved[ring.size - 1 - step]
            step_call = _call(call, block)
            views = _bhsd((grad, q, current[0][0], current[0][1], out), sequence)
            parts = _halves(views[1], views[2], views[3], block)
            outs = [
                t[:, :, t.shape[2] // 2 :] if block == "last queries" else t for t in (views[0], views[4])
            ]
            lse = merged_lse
            if block == "last queries":
                lse = merged_lse[:, :, merged_lse.shape[2] // 2 :].contiguous()
            dq_step, dk_step, dv_step = attention.backward(
                outs[0], *parts, outs[1], (lse, *rest[1:]), step_call
            )
            operators.attention_merge_kernel([dq_step] if first else [dq_step, dq], [dq])
            for request in requests:
                request.wait()
            requests = []
            target = other[1] if last else current[1]
            operators.attention_merge_kernel(
                [dk_step, dv_step] if first else [dk_step, dv_step, target], [target]
            )
            final = target
        return dq, final[0].clone(), final[1].clone(), None, None, None, None


class GatheredAttention(torch.autograd.Function):
    """Keys and values of all ranks are gathered; a causal rank computes its two chunks on two streams."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, call: AttentionCall, group: Any, stream: Any, sequence: int
    ) -> Any:
        """The rank's part of the output."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        gathered = [_gather_sequence(t, group, size, sequence) for t in (k, v)]
        streams = [torch.cuda.current_stream(), stream or torch.cuda.Stream()]
        streams[1].wait_stream(streams[0])
        out = torch.empty_like(q)
        saved = []
        for i, (queries, keys) in enumerate(_chunks(rank, size, q.shape[sequence], call.causal)):
            with torch.cuda.stream(streams[i % 2]):
                query, key, value = _bhsd((q, *gathered), sequence)
                part, rest = attention.forward(
                    query[:, :, queries], key[:, :, :keys], value[:, :, :keys], _call(call, "bottom")
                )
                _bhsd((out,), sequence)[0][:, :, queries].copy_(part)
                saved.append((queries, keys, rest))
        streams[0].wait_stream(streams[1])
        ctx.save_for_backward(q, k, v, out)
        ctx.saved = saved
        ctx.rest = (call, group, size, sequence)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gathers keys and values again; their gradients are reduced and scattered."""
        q, k, v, out = ctx.saved_tensors
        call, group, size, sequence = ctx.rest
        gathered = [_gather_sequence(t, group, size, sequence) for t in (k, v)]
        dq = torch.empty_like(q)
        sums = [torch.zeros_like(t) for t in gathered]
        for queries, keys, rest in ctx.saved:
            views = _bhsd((grad, q, out, dq, *gathered, *sums), sequence)
            d_out, query, o, target = (t[:, :, queries] for t in views[:4])
            key, value, dk, dv = (t[:, :, :keys] for t in views[4:])
            grads = attention.backward(d_out, query, key, value, o, rest, _call(call, "bottom"))
            target.copy_(grads[0])
            dk.add_(grads[1])
            dv.add_(grads[2])
        return (dq, *(_scatter_sequence(t, group, size, sequence) for t in sums), None, None, None, None)


def _call(call: AttentionCall, block: str) -> AttentionCall:
    """Only the diagonal block has a causal mask of its own; chunks with more keys than queries are priced as
    unmasked over the keys that they may see (the mask of the last chunk's diagonal saves little)."""
    causal = call.causal and block == "diagonal"
    return AttentionCall(
        implementation=call.implementation, causal=causal, dropout=call.dropout, scale=call.scale
    )


def _chunks(rank: int, size: int, length: int, causal: bool) -> list[tuple[slice, int]]:
    """Queries of each of the rank's two chunks, and how many keys they see of size * length."""
    if not causal:
        return [(slice(0, length), size * length)]
    half = length // 2
    return [
        (slice(0, half), (rank + 1) * half),
        (slice(half, length), (2 * size - rank) * half),
    ]


def _gather_sequence(tensor: Any, group: Any, size: int, sequence: int) -> Any:
    """All ranks' parts in the sequence's order: an all_gather, and a copy that undoes the load balance."""
    moved = tensor.movedim(sequence, 0).contiguous()
    whole = torch.empty((size * moved.shape[0], *moved.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    dist.all_gather_into_tensor(whole, moved, group=group)
    return whole.clone().movedim(0, sequence)


def _scatter_sequence(tensor: Any, group: Any, size: int, sequence: int) -> Any:
    moved = tensor.movedim(sequence, 0).contiguous()
    part = torch.empty((moved.shape[0] // size, *moved.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    dist.reduce_scatter_tensor(part, moved, group=group)
    return part.movedim(0, sequence)
