"""Checks what ASTRA-sim would trip over: ids, dependencies, required attributes, partners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phantom.export.chakra import execution_trace_pb2 as pb
from phantom.export.chakra.nodes import read_file, values_of

_REQUIRED = {
    pb.COMM_COLL_NODE: ("comm_type", "comm_size", "pg_name"),
    pb.COMM_SEND_NODE: ("comm_dst", "comm_size", "comm_tag"),
    pb.COMM_RECV_NODE: ("comm_src", "comm_size", "comm_tag"),
}


def check(paths: Sequence[Path]) -> list[str]:
    """Everything that is wrong with the traces of all ranks (path k is rank k); empty if nothing is."""
    wrong: list[str] = []
    sent: Counter[tuple[int, int, int, int]] = Counter()
    received: Counter[tuple[int, int, int, int]] = Counter()
    collectives: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for rank, path in enumerate(paths):
        metadata, nodes = read_file(path)
        if metadata.version != "1.0.0":
            wrong.append(f"{path}: schema version {metadata.version!r}")
        seen: set[int] = set()
        for made in nodes:
            wrong += [f"{path}: {text}" for text in _node(made, seen)]
            seen.add(made.id)
            values = values_of(made)
            if made.type == pb.COMM_SEND_NODE:
                sent[rank, values["comm_dst"], values["comm_tag"], values["comm_size"]] += 1
            elif made.type == pb.COMM_RECV_NODE:
                received[values["comm_src"], rank, values["comm_tag"], values["comm_size"]] += 1
            elif made.type == pb.COMM_COLL_NODE:
                entry = (values["comm_type"], values["comm_size"])
                collectives.setdefault(values["pg_name"], {}).setdefault(rank, []).append(entry)
    for key in sorted((sent - received) + (received - sent)):
        wrong.append(f"message {key} (source, destination, tag, bytes) has one side only")
    for name, by_rank in sorted(collectives.items()):
        if len({tuple(entries) for entries in by_rank.values()}) > 1:
            wrong.append(f"group {name}: the ranks' collectives differ")
    return wrong


def _node(made: Any, seen: set[int]) -> list[str]:
    """Ids must be new, dependencies earlier in the file (which also excludes cycles)."""
    wrong = []
    if made.id in seen:
        wrong.append(f"node {made.id} twice")
    unknown = [dep for dep in made.data_deps if dep not in seen]
    if unknown:
        wrong.append(f"node {made.id} depends on {unknown}, which are not before it")
    if made.type == pb.METADATA_NODE:
        wrong.append(f"node {made.id} is a METADATA node, on which ASTRA-sim's statistics abort")
    values = values_of(made)
    missing = [name for name in ("is_cpu_op", *_REQUIRED.get(made.type, ())) if name not in values]
    if missing:
        wrong.append(f"node {made.id} lacks {missing}")
    return wrong
