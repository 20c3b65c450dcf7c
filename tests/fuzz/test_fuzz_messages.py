"""JSON messages of `phantom run` and of nodes: a checked value or one sentence."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.limits import FUZZ
from fuzz.mutation import json_texts
from phantom.launch.link import BadMessage, Link
from phantom.launch.node_messages import FROM_NODE, PROTOCOL, TO_NODE
from phantom.wire.limits import MAX_GPUS
from phantom.wire.messages import CloseJob, Message, OpenJob, Progress, RankExited, Recording, parse

OPEN: dict[str, Any] = {
    "world_size": 4,
    "nodes": 2,
    "gpus_per_node": 2,
    "command": ["train.py", "--lr", "1"],
    "environment": {"NCCL_ALGO": "Ring"},
    "options": {"seed": 3, "steps": 5, "network_lookahead": True},
    "record_steps": [0, 3],
}
DOCUMENTS: list[tuple[type[Message], dict[str, Any]]] = [
    (OpenJob, OPEN),
    (CloseJob, {"statuses": {"0": 0, "1": -9}, "interrupted": True, "wall_s": 1.5}),
    (RankExited, {"rank": 1, "status": -9}),
    (Recording, {"file": "kernels.jsonl"}),
    (Progress, {"virtual_s": 1.0, "abort": {"kind": "deadlock", "message": "x"}, "summary": {"steps": []}}),
]
FROM_NODES: list[dict[str, Any]] = [
    {"event": "hello", "protocol": PROTOCOL, "node": 0, "host": "h", "address": "a", "port": 7, "token": "t"},
    {"event": "ended", "name": "rank 0", "status": -9},
    {"event": "orphans", "count": 3},
    {"event": "said", "text": "x"},
]


@pytest.mark.parametrize(("kind", "document"), DOCUMENTS)
def test_the_documents_themselves_are_good(kind: type[Message], document: dict[str, Any]) -> None:
    parse(kind, msgspec.json.encode(document).decode())


@FUZZ
@given(data=st.data())
def test_a_message_is_good_or_refused_in_one_sentence(data: st.DataObject) -> None:
    kind, document = data.draw(st.sampled_from(DOCUMENTS))
    text = data.draw(json_texts(document)).decode("utf-8", "replace")
    message, sentence = None, f"{kind.__name__}: none"
    try:
        message = parse(kind, text)
    except ValueError as error:
        sentence = str(error)
    assert sentence.startswith(f"{kind.__name__}: ")
    assert len(sentence) < 1000
    if isinstance(message, OpenJob):
        assert message.world_size <= message.nodes * message.gpus_per_node <= MAX_GPUS


@FUZZ
@given(data=st.data())
def test_a_line_is_a_message_or_refused(data: st.DataObject) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    decoder = data.draw(st.sampled_from((FROM_NODE, TO_NODE)))
    link: Link[Any] = Link(ours, decoder)
    line = data.draw(json_texts(data.draw(st.sampled_from(FROM_NODES))))[:60_000]
    theirs.sendall(line.replace(b"\n", b" ") + b"\n")
    theirs.close()
    with contextlib.suppress(BadMessage):
        link.receive(timeout_s=5)
    link.close()
