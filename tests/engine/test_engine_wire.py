"""Batches survive the trip; broken ones are refused."""

import pytest

from phantom.wire import records, simulator_pb2, simulator_pb2_grpc


def test_records_round_trip() -> None:
    batch = [[2, 0, 10**15], [11, 1, 0, ["a"], 5, "why"], [4, 7, [[1, 2]], 3], [12, b"\x00\xff"]]
    assert list(records.unpack(records.pack(*batch))) == batch


def test_truncated_batch_is_refused() -> None:
    data = records.pack([2, 0, 10**15], [2, 0, 10**16])
    with pytest.raises(ValueError, match="ends inside a record"):
        list(records.unpack(data[:-1]))


def test_service_messages() -> None:
    batch = simulator_pb2.RankBatch(rank=3, records=b"xyz", acked=2**40)
    assert simulator_pb2.RankBatch.FromString(batch.SerializeToString()) == batch
    assert hasattr(simulator_pb2_grpc.SimulatorServicer, "Session")
