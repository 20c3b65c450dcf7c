"""DeepEP's dispatch and combine in normal mode: every token to the ranks of its experts, and back.

Between nodes a token goes once to each node by RDMA and is passed on there by NVLink; half of the
multiprocessors that DeepEP takes send, the others receive (github.com/deepseek-ai/DeepEP,
csrc/kernels/internode.cu, intranode.cu).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_NODE_LIMIT = 4  # DeepEP's benchmark lets a token visit up to 4 nodes (num_topk_groups)
_FP8_SCALES = 1.0 + 4.0 / 128  # a float32 scale per 128 elements


@dataclass(frozen=True, kw_only=True)
class ExpertExchange:
    """One dispatch (fp8) or combine (bf16): *tokens* of a rank, each to *topk* of all *experts*."""

    nodes: int
    ranks_per_node: int
    tokens: int
    hidden: int
    topk: int
    experts: int
    multiprocessors: int
    combine: bool

    @property
    def token_bytes(self) -> float:
        """Bytes of one token on the wire."""
        return self.hidden * (2.0 if self.combine else _FP8_SCALES)

    @property
    def nodes_per_token(self) -> float:
        """Nodes that a token visits on average, its own among them."""
        reached = min(self.nodes, _NODE_LIMIT)
        experts = self.experts * reached // self.nodes
        return reached * (1.0 - _none_of(experts, self.experts // self.nodes, self.topk))

    @property
    def ranks_per_token(self) -> float:
        """Ranks that a token reaches on average."""
        reached = min(self.nodes, _NODE_LIMIT)
        experts = self.experts * reached // self.nodes
        ranks = self.nodes * self.ranks_per_node
        share = max(self.experts // ranks, 1)
        return reached * self.ranks_per_node * (1.0 - _none_of(experts, share, self.topk))


def _none_of(experts: int, group: int, topk: int) -> float:
    """Probability that none of *topk* distinct experts, all alike, is in a group."""
    if experts - group < topk:
        return 0.0
    log = math.lgamma
    left = log(experts - group + 1) - log(experts - group - topk + 1)
    return math.exp(left - log(experts + 1) + log(experts - topk + 1))


def expert_exchange_s(exchange: ExpertExchange, *, constants: Mapping[str, float]) -> float:
    """Return the seconds of the exchange on every rank, its notification included, with even loads.

    ``floor_us``, and ``node_floor_us`` per further node; ``sm_gb_per_s`` is what one multiprocessor
    passes on by NVLink and ``nvlink_gb_per_s`` what the links do; ``sm_node_gb_per_s`` and
    ``rdma_gb_per_s`` likewise between nodes; ``rdma_share_4`` and ``rdma_share_8``: the share that the
    fabric of the measurements kept over 4 and 8 nodes. Multiprocessors and wires join by a norm of
    exponent ``norm``.
    """
    local_us = exchange.tokens * exchange.ranks_per_token * exchange.token_bytes * 1e-3
    sm_us = local_us / (exchange.multiprocessors * constants["sm_gb_per_s"])
    floor_us, norm = constants["floor_us"], constants["norm"]
    wires_us = local_us / constants["nvlink_gb_per_s"]
    if exchange.nodes > 1:
        sent_us = exchange.tokens * exchange.nodes_per_token * exchange.token_bytes * 1e-3
        sm_us += sent_us / (exchange.multiprocessors * constants["sm_node_gb_per_s"])
        remote = (exchange.nodes - 1) / exchange.nodes
        share = (
            1.0
            if exchange.nodes <= 2
            else constants["rdma_share_4" if exchange.nodes <= 4 else "rdma_share_8"]
        )
        wires_us = sent_us * remote / (constants["rdma_gb_per_s"] * share)
        floor_us += constants["node_floor_us"] * (exchange.nodes - 1)
    return 1e-6 * (floor_us + float((sm_us**norm + wires_us**norm) ** (1.0 / norm)))
