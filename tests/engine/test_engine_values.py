"""Combined values equal what torch computes on the CPU."""

from __future__ import annotations

import pytest
import torch
from engine_talk import Talk, collective, comm, p2p
from hypothesis import given, settings
from hypothesis import strategies as st

from phantom.engine.collectives import TRAITS, Contribution
from phantom.wire import schema as wire
from phantom.wire.fields import Payload, ReduceOp

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64"]


def payload(tensor: torch.Tensor) -> Payload:
    flat = tensor.contiguous().view(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Payload(str(tensor.dtype).removeprefix("torch."), flat.numel(), False, data)


def tensor(value: Payload | None) -> torch.Tensor:
    assert value is not None
    flat = torch.frombuffer(bytearray(value.data), dtype=getattr(torch, value.dtype))
    return flat.expand(value.numel) if value.uniform else flat


def combine(kind: str, given: list[Payload | None], **options: object) -> list[Payload | None]:
    defaults: dict[str, object] = {
        "root": 0,
        "op": ReduceOp.sum,
        "factors": [None] * len(given),
        "in_splits": [None] * len(given),
    }
    return TRAITS[kind].combine(Contribution(payloads=given, **{**defaults, **options}))  # type: ignore[arg-type]


def defined(dtype: str, op: str) -> bool:
    kind = getattr(torch, dtype)
    if op in ("band", "bor", "bxor"):
        return not kind.is_floating_point and not kind.is_complex
    if kind.is_complex:
        return op in ("sum", "product", "avg")
    return dtype != "bool" or op not in ("avg", "premul_sum")


@pytest.mark.parametrize(
    ("dtype", "op"), [(dtype, op) for dtype in DTYPES for op in ReduceOp if defined(dtype, op)]
)
def test_reductions(dtype: str, op: str) -> None:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(3)
    given = [torch.randint(0, 5, (7,), generator=generator).to(kind) for _ in range(3)]
    result = combine("all_reduce", [payload(entry) for entry in given], op=op, factors=[2.0, 2.0, 2.0])
    wide = [entry.to(torch.complex128 if kind.is_complex else torch.float64) for entry in given]
    if op in ("sum", "avg", "premul_sum"):
        expected = wide[0] + wide[1] + wide[2]
        expected = expected / 3 if op == "avg" else expected * 2 if op == "premul_sum" else expected
        if op == "avg" and not kind.is_floating_point and not kind.is_complex:
            expected = expected.trunc()
    elif op == "product":
        expected = wide[0] * wide[1] * wide[2]
    elif op == "max":
        expected = torch.maximum(torch.maximum(wide[0], wide[1]), wide[2])
    elif op == "min":
        expected = torch.minimum(torch.minimum(wide[0], wide[1]), wide[2])
    else:
        a, b, c = given
        expected = (a & b & c) if op == "band" else (a | b | c) if op == "bor" else (a ^ b ^ c)
    if kind.is_complex:  # complex division rounds each part its own way
        torch.testing.assert_close(tensor(result[2]), expected.to(kind), rtol=1e-6, atol=0)
    else:
        assert torch.equal(tensor(result[2]), expected.to(kind))
    assert result[0] == result[1] == result[2]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_rounds_like_torch(numbers: list[float]) -> None:
    exact = torch.tensor(numbers, dtype=torch.float32)
    halves = exact.to(torch.bfloat16)
    zero = torch.zeros(len(numbers), dtype=torch.bfloat16)
    result = tensor(combine("all_reduce", [payload(halves), payload(zero)])[0])
    assert torch.equal(result.isnan(), halves.isnan())
    assert torch.equal(result[~result.isnan()], halves[~halves.isnan()])
    doubled = tensor(combine("all_reduce", [payload(halves), payload(halves)])[0])
    expected = (halves.float() + halves.float()).to(torch.bfloat16)
    assert torch.equal(doubled[~expected.isnan()], expected[~expected.isnan()])


def test_uniform_values_stay_uniform_and_mix_with_others() -> None:
    ones = Payload("float32", 4, True, payload(torch.tensor([1.0])).data)
    both = combine("all_reduce", [ones, ones])[0]
    assert both is not None
    assert both.uniform
    assert both.numel == 4
    assert tensor(both).tolist() == [2.0] * 4
    mixed = combine("all_reduce", [ones, payload(torch.arange(4.0))])[1]
    assert tensor(mixed).tolist() == [1.0, 2.0, 3.0, 4.0]
    gathered = combine("all_gather", [ones, payload(torch.arange(2.0))])[0]
    assert tensor(gathered).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]


def test_moving_collectives() -> None:
    a, b = payload(torch.arange(4)), payload(torch.arange(4) + 10)
    assert combine("broadcast", [None, b], root=1) == [b, b]
    scattered = combine("scatter", [a, None], root=0)
    assert [tensor(piece).tolist() for piece in scattered] == [[0, 1], [2, 3]]
    gathered = combine("gather", [a, b], root=1)
    assert gathered[0] is None
    assert tensor(gathered[1]).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    parts = combine("reduce_scatter", [a, b])
    assert [tensor(piece).tolist() for piece in parts] == [[10, 12], [14, 16]]
    reduced = combine("reduce", [a, b], root=0, op="max")
    assert tensor(reduced[0]).tolist() == [10, 11, 12, 13]
    assert reduced[1] is None


def test_all_to_all_with_and_without_splits() -> None:
    a, b = payload(torch.arange(4)), payload(torch.arange(4) + 10)
    even = combine("all_to_all", [a, b])
    assert [tensor(row).tolist() for row in even] == [[0, 1, 10, 11], [2, 3, 12, 13]]
    uneven = combine("all_to_all", [a, b], in_splits=[[1, 3], [4, 0]])
    assert [tensor(row).tolist() for row in uneven] == [[0, 10, 11, 12, 13], [1, 2, 3]]
    unknown = combine("all_to_all", [a, None], in_splits=[[1, 3], [4, 0]])
    assert unknown[0] is None
    assert tensor(unknown[1]).tolist() == [1, 2, 3]


def test_what_is_unknown_or_too_large_is_nothing() -> None:
    a = payload(torch.arange(4))
    assert combine("all_reduce", [a, None]) == [None, None]
    assert combine("all_gather", [a, None]) == [None, None]
    large = payload(torch.zeros(3 << 20, dtype=torch.int32))
    assert combine("all_gather", [large, large]) == [None, None]
    assert combine("barrier", [None, None]) == [None, None]


def test_values_that_come_later() -> None:
    talk = Talk(2)
    one = Payload("int64", 1, True, (1).to_bytes(8, "little"))
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    talk.say(0, collective(1, size=8, dtype="int64", value="later", want=True))
    assert talk.say(1, collective(1, size=8, dtype="int64", value=one)) == {}
    expected = wire.ValueOf(1, 0, Payload("int64", 1, True, (2).to_bytes(8, "little")))
    assert talk.say(0, wire.Supply(1, 0, one)) == {0: [expected]}
    talk.say(0, wire.Supply(1, 0, one))
    assert talk.failure()[0] == "protocol"


def test_later_value_of_a_message_and_of_a_rank_that_left() -> None:
    talk = Talk(2)
    for rank in range(2):
        talk.say(rank, comm("g", [0, 1]))
    value = Payload("int8", 1, True, b"\x05")
    talk.say(1, p2p(1, [[0, False, seq, 1, "int8", None, True] for seq in (1, 2)]))
    talk.say(0, p2p(1, [[1, True, seq, 1, "int8", "later", False] for seq in (1, 2)]))
    assert talk.say(0, wire.Supply(1, 1, value)) == {1: [wire.ValueOf(1, 1, value)]}
    assert wire.ValueOf(1, 0, None) in talk.say(0, wire.Bye())[1]
