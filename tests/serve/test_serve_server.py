"""The simulator over gRPC: jobs, sessions, errors."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import msgpack
import pytest
from serve_client import Stub, call, open_job

from netsim.cluster import load_cluster
from phantom.engine import EngineOptions
from phantom.serve import Server
from phantom.wire import schema as wire
from phantom.wire import simulator_pb2 as messages
from phantom.wire.fields import Account, Backend, CollectiveKind, SettledStep, Tail
from phantom.wire.limits import PROTOCOL
from phantom.wire.records import pack, unpack

JOB = {"world_size": 2, "nodes": 1, "gpus_per_node": 2, "command": ["x.py"], "environment": {}}


class Costs:
    """Stands in for the kernel cost model: answers with the request."""

    def cost_batch(self, request: bytes) -> bytes:
        if request == b"bad":
            raise ValueError("not msgpack")
        return request

    failures: ClassVar[dict[str, str]] = {"mm(f32[1,1]c)": "no such operator here"}

    def begin_job(self, *, ranks_per_server: int) -> None:
        pass

    def save_requests(self, path: Path) -> int:
        path.write_text("one kernel\n")
        return 1


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("h100-dgx", cost_model=Costs(), engine=EngineOptions(outside_grace_s=0.2)) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield Stub(channel, server.token)


class Rank:
    """A session driven by the test."""

    def __init__(self, stub: Any, rank: int, world: int = 2, protocol: int = PROTOCOL) -> None:
        self.rank = rank
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.replies = stub.Session(self._batches())
        self.send(wire.Hello(protocol=protocol, rank=rank, world_size=world))

    def _batches(self) -> Iterator[messages.RankBatch]:
        while (records := self._out.get()) is not None:
            yield messages.RankBatch(rank=self.rank, records=records)

    def send(self, *records: wire.Record) -> None:
        self._out.put(pack(*records))

    def end(self) -> None:
        self._out.put(None)

    def next(self, kind: type[wire.Record]) -> Any:
        for reply in self.replies:
            for record in unpack(reply.records):
                if isinstance(record, kind):
                    return record
        raise AssertionError("the stream ended")


GROUP = wire.Comm("c", [0, 1], Backend.nccl, "world")
SYNC = wire.Sync(1, 0, Tail(1, 0, 0), 3000, "synchronize")


def collective(node: int, size: int = 1 << 20) -> wire.Collective:
    kind = CollectiveKind.all_reduce
    return wire.Collective(
        node, "c", 1, kind, "float32", size, -1, Tail(0, 0, 0), 0, 1000, where="train.py:7"
    )


def test_a_job_from_open_to_summary(stub: Any) -> None:
    config = open_job(stub, **JOB)
    assert config["device"]["name"].startswith("NVIDIA H100")
    assert 0 < config["capacity_bytes"] < config["device"]["total_memory"]
    assert config["host"]["op_ps"] > 0
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    for rank in ranks:
        rank.send(GROUP, collective(1), wire.Step(0, Tail(1, 500, 0), 0, 2000))
        rank.send(SYNC)
    ends = {rank.next(wire.Answer).value for rank in ranks}
    assert len(ends) == 1
    assert ends.pop() > 1000
    account = Account(
        steps=[SettledStep(0, 5_000_000, 2_000_000, 2_000_000, 1_000_000)],
        first_kernel_ps=1000,
        ops=7,
        sources={"predicted": 10},
        unpriced={"my::op": 1},
    )
    for rank in ranks:
        rank.send(wire.Stats(account), wire.Bye())
        rank.end()
        assert all(reply.records for reply in rank.replies)
    summary = call(stub.CloseJob, statuses={"0": 0, "1": 0})
    assert summary["status"] == "ok"
    assert [step["index"] for step in summary["steps"]] == [0]
    assert summary["steps"][0]["virtual_s"] > 0
    row = summary["collectives"][0]
    assert (row["kind"], row["ranks"], row["bytes"], row["count"]) == ("all_reduce", 2, 1 << 20, 1)
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(row["bytes"] / row["virtual_s"])
    assert summary["ranks"][1]["compute_s"] == 2e-6
    assert summary["unpriced_ops"] == [{"op": "my::op", "count": 2}]
    assert summary["coverage"]["predicted"] == 1.0
    assert any("mm(f32[1,1]c): no such operator here" in warning for warning in summary["warnings"])
    kept = stub.Recording(messages.JsonMessage(json='{"file": "kernels.jsonl"}'), timeout=20)
    assert b"".join(chunk.content for chunk in kept) == b"one kernel\n"


def test_watch_tells_of_a_mismatch_and_ranks_are_aborted(stub: Any) -> None:
    open_job(stub, **JOB)
    told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def watch() -> None:
        for message in stub.Watch(messages.JsonMessage(json="{}")):
            told.put(json.loads(message.json))

    threading.Thread(target=watch, daemon=True).start()
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    ranks[0].send(GROUP, collective(1, size=4))
    ranks[1].send(GROUP, collective(1, size=8))
    for rank in ranks:
        abort = rank.next(wire.Abort)
        assert abort.kind == "mismatch"
        assert "rank 0: all_reduce of 4 bytes of float32 at train.py:7" in abort.message
        assert "rank 1: all_reduce of 8 bytes" in abort.message
    while not (message := told.get(timeout=5))["abort"]:
        pass
    assert message["abort"]["kind"] == "mismatch"
    for rank in ranks:
        rank.end()
    assert call(stub.CloseJob, statuses={"0": 1, "1": 1})["status"] == "failed"


def test_a_lost_session_aborts_the_others(stub: Any) -> None:
    open_job(stub, **JOB)
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    ranks[0].next(wire.Welcome)
    ranks[1].next(wire.Welcome)
    ranks[1].replies.cancel()
    abort = ranks[0].next(wire.Abort)
    assert abort.kind == "peer-lost"
    assert "rank 1" in abort.message
    ranks[0].end()
    assert call(stub.CloseJob, statuses={"1": -9})["status"] == "failed"


def test_a_process_that_never_attached_and_failed_is_a_lost_peer(stub: Any) -> None:
    open_job(stub, **JOB)
    rank = Rank(stub, 0)
    rank.next(wire.Welcome)
    call(stub.RankExited, rank=1, status=3)
    assert "rank 1 is gone: its process ended with status 3" in rank.next(wire.Abort).message
    rank.end()


def test_deadlock_is_the_job_status(stub: Any) -> None:
    open_job(stub, **JOB)
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    ranks[0].send(GROUP, collective(1))
    ranks[0].send(SYNC)
    ranks[1].send(wire.Bye())
    abort = ranks[0].next(wire.Abort)
    assert abort.kind == "deadlock"
    assert "waits for rank 1, which has not called it" in abort.message
    for rank in ranks:
        rank.end()
    assert call(stub.CloseJob, statuses={"0": 1})["status"] == "deadlock"


def refused(replies: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        list(replies)
    return error.value.code(), error.value.details()


def test_sessions_that_cannot_be(stub: Any) -> None:
    code, text = refused(Rank(stub, 0).replies)
    assert (code, "no token of a job" in text) == (grpc.StatusCode.UNAUTHENTICATED, True)
    open_job(stub, **JOB)
    code, text = refused(Rank(stub, 2).replies)
    assert (code, "rank 2 is outside this job of 2 ranks" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    first = Rank(stub, 0)
    first.next(wire.Welcome)
    code, text = refused(Rank(stub, 0).replies)
    assert (code, "two processes run as the same rank" in text) == (grpc.StatusCode.ALREADY_EXISTS, True)
    with pytest.raises(grpc.RpcError, match=r"runs another job \(x.py, 2 ranks, opened 0 s ago\)"):
        open_job(stub, **JOB)
    first.end()


def test_protocol_mismatch_names_both_versions(stub: Any) -> None:
    open_job(stub, **JOB)
    rank = Rank(stub, 0, protocol=99)
    rank.send(wire.Bye())
    rank.end()
    list(rank.replies)
    failure = call(stub.CloseJob)["failure"]
    assert failure["kind"] == "protocol"
    assert f"speaks protocol 99, this simulator speaks {PROTOCOL}" in failure["message"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"world_size": 0}, "world_size: Expected `int`"),
        ({"world_size": "2"}, "world_size: Expected `int`"),
        ({"world_size": 3}, "more than 1 nodes x 2 GPUs"),
        ({"gpus_per_node": 99, "world_size": 99}, "gpus"),
        ({"nodes": 60_000}, "is more than 65536 GPUs"),
        ({"nodes": 1_000_000}, "nodes: Expected `int` <= 65536"),
        ({"nodes": 1 << 40}, "nodes: Expected `int` <= 65536"),
        ({"out": "/tmp"}, "unknown field `out`"),
        ({"environment": {"A": 1}}, "Expected `str`, got `int`"),
        ({"options": {"seed": "x"}}, "options.seed: Expected `int"),
        ({"record_steps": [-1, 2]}, "record_steps[0]: Expected `int` >= 0"),
    ],
)
def test_bad_jobs(stub: Any, change: dict[str, Any], text: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        open_job(stub, **{**JOB, **change})
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in error.value.details()


def test_costs(stub: Any) -> None:
    open_job(stub, **JOB)
    request = msgpack.packb([{"op": "aten::mm"}])
    assert stub.Cost(messages.KernelBatch(kernels=request)).costs == request
    code = None
    try:
        stub.Cost(messages.KernelBatch(kernels=b"bad"))
    except grpc.RpcError as error:
        code = error.code()
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_slow_gpu_pays_more() -> None:
    cluster = load_cluster("h100-dgx")
    slow = replace(cluster, degrade=replace(cluster.degrade, gpus={1: 0.5}))
    costs = msgpack.packb([[100, "predicted", "gemm", 1, 0]])
    with Server(slow, cost_model=Costs()) as server, grpc.insecure_channel(server.address) as channel:  # type: ignore[arg-type]
        stub = Stub(channel, server.token)
        open_job(stub, **JOB)
        durations = [
            msgpack.unpackb(stub.Cost(messages.KernelBatch(kernels=costs, rank=rank)).costs)[0][0]
            for rank in range(3)
        ]
    assert durations == [100, 200, 100]


def test_port_in_use(server: Server) -> None:
    with pytest.raises(OSError, match="cannot listen on"):
        Server("h100-dgx", listen=server.address, cost_model=Costs()).start()  # type: ignore[arg-type]


def test_message_limit_breaks_the_session_with_a_reason(stub: Any) -> None:
    open_job(stub, **JOB)
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    ranks[0].next(wire.Welcome)
    ranks[1].next(wire.Welcome)
    ranks[1].send(wire.Post("k" * (65 << 20), 0, 1))
    assert ranks[0].next(wire.Abort).kind == "peer-lost"
    ranks[0].end()


def test_a_run_that_means_another_cluster_is_refused(stub: Any) -> None:
    from phantom.serve.config import cluster_digest

    with pytest.raises(grpc.RpcError, match=r"serves cluster h100-dgx.*a100-dgx.*same --cluster"):
        open_job(stub, **JOB, cluster="a100-dgx", cluster_digest=cluster_digest(load_cluster("a100-dgx")))
    open_job(stub, **JOB, cluster="h100-dgx", cluster_digest=cluster_digest(load_cluster("h100-dgx")))


@pytest.mark.parametrize("method", ["CloseJob", "Watch", "RankExited", "Recording", "Cost", "Session"])
@pytest.mark.parametrize("token", ["", "guess", "the server's"])
def test_every_call_needs_the_jobs_token(server: Server, stub: Stub, method: str, token: str) -> None:
    open_job(stub, **JOB)
    stub.job_token = server.token if token == "the server's" else token

    def call_it() -> None:
        if method == "Session":
            list(stub.Session(iter(())))
            return
        request = messages.KernelBatch() if method == "Cost" else messages.JsonMessage(json="{}")
        answer = getattr(stub, method)(request, timeout=20)
        if method in ("Watch", "Recording"):
            list(answer)

    with pytest.raises(grpc.RpcError) as error:
        call_it()
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_jobs_token_opens_no_job(stub: Stub) -> None:
    open_job(stub, **JOB)
    stub.server_token = stub.job_token
    with pytest.raises(grpc.RpcError, match="opens jobs only for its token"):
        open_job(stub, **JOB)


def test_a_second_run_leaves_the_first_alone(server: Server, stub: Stub) -> None:
    open_job(stub, **JOB)
    first = [Rank(stub, 0), Rank(stub, 1)]
    for rank in first:
        rank.next(wire.Welcome)
    with grpc.insecure_channel(server.address) as channel:
        other = Stub(channel, server.token)
        with pytest.raises(grpc.RpcError, match="runs another job"):
            open_job(other, **JOB)
    for rank in first:
        rank.send(wire.Bye())
        rank.end()
        list(rank.replies)
    assert call(stub.CloseJob)["status"] == "ok"
    open_job(stub, **JOB)  # and now there is room


def test_a_rank_of_a_job_that_is_over_is_refused(stub: Stub) -> None:
    open_job(stub, **JOB)
    old = stub.job_token
    call(stub.CloseJob)
    open_job(stub, **JOB)
    stub.job_token, new = old, stub.job_token
    code, text = refused(Rank(stub, 0).replies)
    assert (code, "the job of this call is over" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    stub.job_token = new
    Rank(stub, 0).next(wire.Welcome)


def test_steps_so_far_are_told_while_the_job_runs(stub: Stub) -> None:
    open_job(stub, **JOB)
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    for rank in ranks:
        rank.send(wire.Step(0, Tail(0, 0, 700), 0, 800))
    for message in stub.Watch(messages.JsonMessage(json="{}"), timeout=20):
        summary = json.loads(message.json)["summary"]
        if summary is not None:
            break
    assert [step["index"] for step in summary["steps"]] == [0]
    assert summary["status"] == "interrupted"


def test_a_malformed_record_ends_the_job_and_keeps_its_steps(stub: Stub) -> None:
    open_job(stub, **JOB)
    ranks = [Rank(stub, 0), Rank(stub, 1)]
    for rank in ranks:
        rank.send(wire.Step(0, Tail(0, 0, 700), 0, 800))
    ranks[1].send(wire.Clock(0, 1 << 63))
    for rank in ranks:
        abort = rank.next(wire.Abort)
        assert abort.kind == "protocol"
        assert "rank 1: CLOCK: field now_ps is 9223372036854775808" in abort.message
        rank.end()
    summary = call(stub.CloseJob, statuses={"0": 1, "1": 1})
    assert summary["status"] == "failed"
    assert summary["failure"]["kind"] == "protocol"
    assert [step["index"] for step in summary["steps"]] == [0]
