"""The simulator's record of collectives, written while a job runs over gRPC."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from serve_client import Stub, open_job

from netsim.nccl.collectives import WIRE_FACTOR
from phantom.serve import Server
from phantom.serve.recorder import Recorder
from phantom.timeline.collectives import read_all
from phantom.wire import schema as wire
from phantom.wire import simulator_pb2 as messages
from phantom.wire.fields import Backend, CollectiveKind, Side, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import pack

ENDED_WELL = messages.JsonMessage(json='{"statuses": {"0": 0, "1": 0}}')
KINDS = tuple(CollectiveKind(kind) for kind in ("all_reduce", "all_gather", "all_reduce"))


def _messages(rank: int) -> list[wire.Record]:
    """Each rank sends to the other, in one launch each way."""
    both = [Side(1 - rank, is_send, 0, 1 << 20, "float32") for is_send in (rank == 0, rank != 0)]
    return [wire.P2P(90, "c", Tail(0, 0, 10**10), 0, 10**10, both, "")]


def _rank(
    stub: Any, rank: int, *, messaging: bool = False, leaves: bool = True
) -> tuple[queue.SimpleQueue[bytes | None], Any]:
    out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def batches() -> Iterator[messages.RankBatch]:
        while (records := out.get()) is not None:
            yield messages.RankBatch(rank=rank, records=records)

    records: list[wire.Record] = [wire.Hello(protocol=PROTOCOL, rank=rank, world_size=2)]
    records.append(wire.Comm("c", [0, 1], Backend.nccl, "default_pg"))
    for step, kind in enumerate(KINDS):
        node, now = step + 1, 10**9 * step + 1000 * rank
        root = 0 if kind == CollectiveKind.broadcast else -1
        records.append(
            wire.Collective(node, "c", step, kind, "float32", 1 << 20, root, Tail(0, 0, now), 0, now)
        )
        records.append(wire.Step(step, Tail(node, 0, 0), 0, now + 1))
    records += _messages(rank) if messaging else []
    last = Tail(90 if messaging else len(KINDS), 0, 0)
    records.append(wire.Sync(1, 0, last, 10**9 * len(KINDS), "the end"))
    records += [wire.Bye()] if leaves else []
    out.put(pack(*records))
    return out, stub.Session(batches())


@contextmanager
def _opened_job(
    tmp_path: Path, *, steps: tuple[int, int] = (0, 1 << 62), messaging: bool = False, leaves: bool = True
) -> Iterator[tuple[Any, list[tuple[queue.SimpleQueue[bytes | None], Any]]]]:
    """The simulator of a recorded job of two ranks, and their sessions, which have sent everything."""
    with (
        Server("h100-dgx", cost_model=None, folder=tmp_path) as server,
        grpc.insecure_channel(server.address) as channel,
    ):  # type: ignore[arg-type]
        stub = Stub(channel, server.token)
        open_job(stub, world_size=2, nodes=1, gpus_per_node=2, record_steps=list(steps))
        yield stub, [_rank(stub, rank, messaging=messaging, leaves=leaves) for rank in range(2)]


@contextmanager
def _ended_job(
    tmp_path: Path, *, steps: tuple[int, int] = (0, 1 << 62), messaging: bool = False
) -> Iterator[Any]:
    """The same with its sessions at their ends."""
    with _opened_job(tmp_path, steps=steps, messaging=messaging) as (stub, sessions):
        for out, replies in sessions:
            out.put(None)
            assert list(replies)
        yield stub


@pytest.mark.parametrize(("steps", "kept"), [((0, 1 << 62), [0, 1, 2]), ((0, 1), [0]), ((1, 2), [1])])
def test_collectives_are_recorded_with_their_members(
    tmp_path: Path, steps: tuple[int, int], kept: list[int]
) -> None:
    with _ended_job(tmp_path, steps=steps) as stub:
        stub.CloseJob(ENDED_WELL, timeout=20)
    log = read_all(tmp_path / "spool" / "collectives.msgpack")
    assert log.whole
    groups, collectives = log.groups, log.collectives
    assert groups["c"].ranks == (0, 1)
    assert [c.seq for c in collectives] == kept
    for c in collectives:
        assert c.kind == KINDS[c.seq]
        assert c.members == ((0, c.seq + 1), (1, c.seq + 1))
        assert c.start_ps == 10**9 * c.seq + 1000  # the last member's ready time
        assert c.end_ps > c.start_ps
        assert c.algorithm
        assert c.channels > 0
        assert 0 < c.bus_bandwidth_bytes_per_s < 450e9


def test_the_summary_comes_after_the_record_and_with_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Recorder) -> None:
        raise OSError("no space left for the record")

    monkeypatch.setattr(Recorder, "close", full)
    with _ended_job(tmp_path) as stub, pytest.raises(grpc.RpcError, match="no space left for the record"):
        stub.CloseJob(ENDED_WELL, timeout=20)


def test_ranks_hear_of_the_end_though_the_record_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Recorder) -> None:
        raise OSError("no space left for the record")

    monkeypatch.setattr(Recorder, "close", full)
    with _opened_job(tmp_path, leaves=False) as (stub, sessions):
        heard = [next(replies).records for _, replies in sessions]
        with pytest.raises(grpc.RpcError, match="no space left for the record"):
            stub.CloseJob(messages.JsonMessage(json='{"statuses": {}, "interrupted": true}'), timeout=20)
        for number, (out, replies) in enumerate(sessions):
            heard[number] += b"".join(reply.records for reply in replies)
            out.put(None)
    assert all(b"the job was closed" in records for records in heard)


def test_messages_name_the_sender_first_and_links_carry_their_bytes(tmp_path: Path) -> None:
    with _ended_job(tmp_path, messaging=True) as stub:
        stub.CloseJob(ENDED_WELL, timeout=20)
    log = read_all(tmp_path / "spool" / "collectives.msgpack")
    collectives, record = log.collectives, log.links
    sent = [c.members for c in collectives if c.kind == "send_recv"]
    assert sorted(sent) == [((0, 90), (1, 90)), ((1, 90), (0, 90))]
    by_name = {link.name: link.bytes.sum() for link in record.links}
    collective = sum(
        c.size_bytes * c.bus_factor * WIRE_FACTOR[c.protocol] for c in collectives if c.kind != "send_recv"
    )
    for rank in range(2):
        assert by_name[f"node0/gpu{rank}->node0/nvswitch"] == pytest.approx(collective + (1 << 20), rel=1e-3)


@pytest.mark.parametrize("fetched", [True, False])
def test_a_run_elsewhere_fetches_its_record_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("phantom.serve.recordings.CHUNK_BYTES", 100)
    with Server("h100-dgx", cost_model=None) as server, grpc.insecure_channel(server.address) as channel:  # type: ignore[arg-type]
        stub = Stub(channel, server.token)
        open_job(stub, world_size=2, nodes=1, gpus_per_node=2, record_steps=[0, 1 << 62])
        sessions = [_rank(stub, rank) for rank in range(2)]
        for out, replies in sessions:
            out.put(None)
            assert list(replies)
        stub.CloseJob(ENDED_WELL, timeout=20)
        assert len(list(tmp_path.glob("phantom-recording-*"))) == 1
        if fetched:
            asked = messages.JsonMessage(json='{"file": "collectives.msgpack"}')
            chunks = [chunk.content for chunk in stub.Recording(asked, timeout=20)]
            assert len(chunks) > 1
            assert max(map(len, chunks)) <= 100
            (tmp_path / "fetched").write_bytes(b"".join(chunks))
            assert [c.seq for c in read_all(tmp_path / "fetched").collectives] == [0, 1, 2]
            with pytest.raises(grpc.RpcError, match="no record"):
                list(stub.Recording(asked, timeout=20))
    assert not list(tmp_path.glob("phantom-recording-*"))  # nothing is left behind, fetched or not
