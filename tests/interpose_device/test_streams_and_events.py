"""Streams and events in virtual time. `torch.cuda._sleep(cycles)` is a kernel of known length."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
import torch

MS = 1_980_000  # cycles of one millisecond


def timed() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def now_ms(extension: ModuleType) -> float:
    return extension.clock_now_ps() / 1e9


def test_kernels_on_one_stream_follow_each_other(device: ModuleType) -> None:
    torch.cuda._sleep(MS)  # so that the stream is busy when the first event is recorded
    start, end = timed(), timed()
    start.record()
    torch.cuda._sleep(2 * MS)
    torch.cuda._sleep(3 * MS)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(5.0, abs=1e-9)


def test_the_host_does_not_wait_for_the_device(device: ModuleType) -> None:
    before = now_ms(device)
    torch.cuda._sleep(10 * MS)
    assert now_ms(device) - before < 0.1
    torch.cuda.synchronize()
    assert 10.0 < now_ms(device) - before < 10.1


def test_streams_run_side_by_side(device: ModuleType) -> None:
    before = now_ms(device)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10 * MS)
    torch.cuda.synchronize()
    assert 10.0 < now_ms(device) - before < 10.1


def test_wait_stream_puts_them_in_order(device: ModuleType) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    before = now_ms(device)
    with torch.cuda.stream(first):
        torch.cuda._sleep(10 * MS)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        torch.cuda._sleep(10 * MS)
    second.synchronize()
    assert 20.0 < now_ms(device) - before < 20.1
    assert first.query()


def test_event_is_a_snapshot(device: ModuleType) -> None:
    event, other = torch.cuda.Event(), torch.cuda.Stream()
    torch.cuda._sleep(MS)
    event.record()
    torch.cuda._sleep(100 * MS)
    other.wait_event(event)
    before = now_ms(device)
    event.synchronize()
    assert now_ms(device) - before < 1.1
    assert event.query()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_polling_an_event_ends(device: ModuleType) -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(MS // 10)
    event.record()
    polls = 0
    while not event.query():
        polls += 1
    assert 50 < polls < 150  # 100 us at 1 us per query


def test_events_refuse_what_pytorch_refuses(device: ModuleType) -> None:
    plain, recorded = torch.cuda.Event(), timed()
    plain.record()
    recorded.record()
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        plain.elapsed_time(recorded)
    with pytest.raises(ValueError, match="must be recorded before calculating elapsed time"):
        recorded.elapsed_time(timed())
    torch.cuda._sleep(MS)
    late = timed()
    late.record()
    with pytest.raises(RuntimeError, match="not ready"):
        recorded.elapsed_time(late)
    torch.cuda.synchronize()
    assert torch.cuda.Event().query()  # never recorded


def test_event_of_another_thread(device: ModuleType) -> None:
    start, end = timed(), timed()

    def record() -> None:
        torch.cuda._sleep(MS)
        start.record()
        torch.cuda._sleep(MS)
        end.record()

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1.0, abs=1e-9)


def test_device_and_stream_are_per_thread(device: ModuleType) -> None:
    stream = torch.cuda.Stream()
    seen: list[object] = []

    def look() -> None:
        seen.append(torch.cuda.current_device())
        seen.append(torch.cuda.current_stream() == stream)

    with torch.cuda.stream(stream):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.cuda.current_stream() == stream
    assert seen == [0, False]


def test_pool_of_32_streams(device: ModuleType) -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len({s.cuda_stream for s in streams}) == 32
    assert streams[0] == streams[32]
    high = torch.cuda.Stream(priority=-1)
    assert high.priority == -1
    assert high.cuda_stream not in {s.cuda_stream for s in streams}
    assert torch.cuda.Stream(priority=-100).priority == torch.cuda.Stream.priority_range()[1]


def test_stream_of_another_device_selects_it(device: ModuleType) -> None:
    stream = torch.cuda.Stream(device=2)
    assert stream.device == torch.device("cuda", 2)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 2
    assert torch.cuda.current_device() == 0


def test_external_stream(device: ModuleType) -> None:
    one = torch.cuda.Stream()
    assert torch.cuda.ExternalStream(one.cuda_stream) == one
    other = torch.cuda.ExternalStream(0x1234560)
    assert other.cuda_stream == 0x1234560
    assert other != one


def test_generic_stream_and_event(device: ModuleType) -> None:
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    torch.cuda._sleep(MS)
    end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1.0, abs=0.02)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 8
    assert not torch.accelerator.current_stream().is_capturing()


def test_record_stream_keeps_the_block_until_the_other_stream_is_done(device: ModuleType) -> None:
    side = torch.cuda.Stream()
    block = torch.UntypedStorage(16 << 20, device="cuda")
    address = block.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10 * MS)
    device.record_stream(block, side.device_index, side.stream_id)
    del block
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 16 << 20
    assert torch.cuda.memory_allocated() == 0
    other = torch.UntypedStorage(16 << 20, device="cuda")
    assert other.data_ptr() != address
    side.synchronize()
    again = torch.UntypedStorage(16 << 20, device="cuda")
    assert again.data_ptr() == address


def test_graph_keeps_its_branches(device: ModuleType) -> None:
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(MS)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(3 * MS)
        torch.cuda._sleep(2 * MS)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda._sleep(MS)
    for _ in range(2):
        torch.cuda.synchronize()
        before = now_ms(device)
        graph.replay()
        torch.cuda.synchronize()
        assert now_ms(device) - before == pytest.approx(1 + 3 + 1, abs=0.02)


def test_graph_replay_costs_one_launch(device: ModuleType) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        for _ in range(100):
            torch.cuda._sleep(MS // 100)
    torch.cuda.synchronize()
    before = now_ms(device)
    graph.replay()
    assert now_ms(device) - before < 0.01
    torch.cuda.synchronize()
    assert now_ms(device) - before == pytest.approx(1.0, abs=0.02)
