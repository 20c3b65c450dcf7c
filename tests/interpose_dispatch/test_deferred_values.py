"""Values that are themselves pending: operators on them run when they arrive, in the order of the program."""

from __future__ import annotations

import threading
import time
from types import ModuleType

import hypothesis
import hypothesis.strategies as st
import torch


def test_chain_of_operators_waits_for_the_value(extension: ModuleType) -> None:
    a = torch.zeros(4, dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    b = a * 2
    c = b + a
    assert extension.value_pending(c)
    fulfil(torch.tensor([1, 2, 3, 4]))
    assert c.tolist() == [3, 6, 9, 12]


def test_unknown_result_makes_dependents_unknown(extension: ModuleType) -> None:
    a = torch.zeros(4, dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    b = a + 1
    fulfil(None)
    assert not extension.has_value(a)
    assert not extension.has_value(b)


def test_later_write_does_not_reach_an_earlier_reader(extension: ModuleType) -> None:
    a = torch.tensor([1, 1], device="cuda")
    late = torch.zeros(2, dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(late)
    early = a + late
    a.fill_(100)
    after = a + late
    a.add_(late)
    fulfil(torch.tensor([5, 6]))
    assert early.tolist() == [6, 7]
    assert after.tolist() == [105, 106]
    assert a.tolist() == [105, 106]


def test_pending_piece_of_a_storage(extension: ModuleType) -> None:
    a = torch.zeros(4, dtype=torch.long, device="cuda")
    first, second = extension.set_pending(a[:2]), extension.set_pending(a[2:])
    total = a.sum()
    second(torch.tensor([3, 4]))
    assert extension.value_pending(total)
    first(torch.tensor([1, 2]))
    assert a.tolist() == [1, 2, 3, 4]
    assert total.item() == 10


def test_host_scalar_is_caught_when_the_operator_is_issued(extension: ModuleType) -> None:
    a = torch.zeros(2, dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    host = torch.tensor(10)
    b = a + host
    host.fill_(0)
    fulfil(torch.tensor([1, 2]))
    assert b.tolist() == [11, 12]


def test_read_waits_for_another_thread(extension: ModuleType) -> None:
    a = torch.zeros((), dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    b = a + 1
    thread = threading.Thread(target=lambda: (time.sleep(0.2), fulfil(torch.tensor(41))))
    thread.start()
    assert b.item() == 42
    thread.join()


def test_non_blocking_copy_is_there_after_the_synchronisation(extension: ModuleType) -> None:
    a = torch.zeros(3, dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    host = torch.full((3,), -1).pin_memory()
    host.copy_(a, non_blocking=True)
    assert host.tolist() == [-1, -1, -1]
    thread = threading.Thread(target=lambda: (time.sleep(0.1), fulfil(torch.tensor([7, 8, 9]))))
    thread.start()
    torch.cuda.synchronize()
    extension.settle_host_copies()
    assert host.tolist() == [7, 8, 9]
    thread.join()


def test_long_chain_does_not_recurse(extension: ModuleType) -> None:
    a = torch.zeros((), dtype=torch.long, device="cuda")
    fulfil = extension.set_pending(a)
    for _ in range(20_000):
        a.add_(1)
    fulfil(torch.tensor(0))
    assert a.item() == 20_000


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.data())
def test_any_program_gives_what_the_cpu_gives(data: st.DataObject) -> None:
    from interpose import extension as loader

    extension = loader.load()
    host = [torch.arange(4) + 10 * i for i in range(3)]
    device = [t.cuda() for t in host]
    waiting = []
    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["pend", "add_", "copy_", "new", "slice", "fulfil"]))
        i, j = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
        if kind == "pend":
            value = torch.tensor(data.draw(st.lists(st.integers(-9, 9), min_size=4, max_size=4)))
            waiting.append((extension.set_pending(device[i]), value))
            host[i] = host[i].clone()
            host[i].copy_(value)
        elif kind == "add_":
            device[i].add_(device[j])
            host[i].add_(host[j])
        elif kind == "copy_":
            device[i].copy_(device[j])
            host[i].copy_(host[j])
        elif kind == "new":
            device[i] = device[i] * 2 + device[j]
            host[i] = host[i] * 2 + host[j]
        elif kind == "slice":
            device[i][1:3].mul_(device[j][0])
            host[i][1:3].mul_(host[j][0])
        elif waiting:
            fulfil, value = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            fulfil(value)
    for fulfil, value in waiting:
        fulfil(value)
    for a, b in zip(host, device):
        assert b.tolist() == a.tolist()
