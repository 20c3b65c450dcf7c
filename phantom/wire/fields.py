"""What records are made of: numbers with their units and ranges, enumerations, structures inside records."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal, Optional, Union

from msgspec import Meta, Struct

from phantom.wire.limits import MAX_BYTES, MAX_PS, MAX_RANKS, MAX_SEQUENCE, MAX_VALUE_BYTES

# typing.get_type_hints resolves the annotations at run time: Optional and Union work on Python 3.10 too.
# ruff: noqa: UP007, UP045

_INT64 = 2**63 - 1

Ps = Annotated[int, Meta(ge=0, le=MAX_PS, description="ps")]
Number = Annotated[int, Meta(ge=0, le=2**53, description="number")]
Count = Annotated[int, Meta(ge=0, le=_INT64, description="count")]
Signed = Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64, description="count")]
Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES, description="bytes")]
Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS, description="rank")]
Ranks = Annotated[int, Meta(ge=1, le=MAX_RANKS, description="ranks")]
ClockNumber = Annotated[int, Meta(ge=0, lt=2**31, description="number")]
Sequence = Annotated[int, Meta(ge=0, le=MAX_SEQUENCE, description="number")]
StepNumber = Annotated[int, Meta(ge=0, lt=2**31, description="number")]
Real = Annotated[float, Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308, description="number")]
Name = Annotated[str, Meta(max_length=4096, description="text")]
Text = Annotated[str, Meta(max_length=1 << 20, description="text")]
Flag = bool

ELEMENT_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes per element of the torch dtypes whose values travel."""


class Word(str, Enum):
    """A text out of a few; equal to its plain text, hashes and prints like it."""

    __hash__ = str.__hash__
    __str__ = str.__str__

    def __format__(self, format_spec: str) -> str:
        return str.__format__(self, format_spec)


class CollectiveKind(Word):
    """What a collective does."""

    all_reduce = "all_reduce"
    broadcast = "broadcast"
    reduce = "reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"
    gather = "gather"
    scatter = "scatter"
    barrier = "barrier"


class ReduceOp(Word):
    """How a collective combines elements."""

    sum = "sum"
    avg = "avg"
    max = "max"
    min = "min"
    product = "product"
    band = "band"
    bor = "bor"
    bxor = "bxor"
    premul_sum = "premul_sum"


class Backend(Word):
    """The library that a communicator presents itself as."""

    nccl = "nccl"
    gloo = "gloo"


class Direction(Word):
    """Of a copy between host and device."""

    h2d = "h2d"
    d2h = "d2h"


class AbortKind(Word):
    """Why the simulator ended a job."""

    deadlock = "deadlock"
    mismatch = "mismatch"
    peer_lost = "peer-lost"
    shutdown = "shutdown"
    protocol = "protocol"


class Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A structure inside a record; travels as an array."""


class Tail(Part, frozen=True):
    """A point in virtual time, `max(end(node) + offset_ps, bound_ps)`; node 0 means none."""

    node: Number
    offset_ps: Ps
    bound_ps: Ps


class Payload(Part, frozen=True):
    """The value of a tensor: little-endian elements; with `uniform`, one stands for all `numel`."""

    dtype: Name
    numel: Annotated[int, Meta(ge=0, le=2**53, description="elements")]
    uniform: Flag
    data: Annotated[bytes, Meta(max_length=MAX_VALUE_BYTES, description="bytes")]

    def __post_init__(self) -> None:
        width = ELEMENT_BYTES.get(self.dtype)
        if width is None:
            raise ValueError(f"values of dtype {self.dtype[:40]!r} do not travel")
        elements = 1 if self.uniform else self.numel
        if len(self.data) != elements * width:
            raise ValueError(f"{len(self.data)} bytes for {elements} elements of {self.dtype}")


LATER: Literal["later"] = "later"
Value = Union[Payload, Literal["later"], None]
"""A value that is known, that a SUPPLY will bring, or that nobody knows."""

Splits = Optional[Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_BYTES, description="elements")], ...],
                            Meta(max_length=MAX_RANKS)]]  # fmt: skip


class Dependency(Part, frozen=True):
    """A node and the work after it."""

    node: Number
    offset_ps: Ps


class Side(Part, frozen=True):
    """One message of a launch; `peer` is a group rank, `seq` counts the messages of the ordered pair."""

    peer: Rank
    is_send: Flag
    seq: Sequence
    size_bytes: Bytes
    dtype: Name
    value: Value = None
    want: Flag = False


class SettledStep(Part, frozen=True):
    """A rank's own account of one step."""

    index: StepNumber
    end_ps: Ps
    compute_ps: Ps
    exposed_ps: Ps
    idle_ps: Ps


class Total(Part, frozen=True):
    """How often, and for how long in all."""

    count: Count
    total_ps: Count


class TopKernel(Part, frozen=True):
    """A kernel that took much of the time."""

    name: Text
    source: Name
    count: Count
    total_ps: Count
    klass: Name


class Router(Part, frozen=True):
    """What the routers of one layer of experts chose; `busiest` sums each call's fullest expert."""

    layer: Signed
    experts: Count
    choices: Count
    calls: Count
    tokens: Count
    busiest: Count


Counts = dict[Text, Count]


class Account(Struct, frozen=True, forbid_unknown_fields=True):
    """The rank's own account, as a map; `steps` holds new steps only, all else is the total so far."""

    steps: Annotated[list[SettledStep], Meta(max_length=1 << 24)] = []
    first_kernel_ps: Annotated[int, Meta(ge=-1, le=MAX_PS, description="ps, -1: none yet")] = -1
    ideal_first_step_ps: Count = 0
    ideal_ps: Count = 0
    kernels: dict[Name, Total] = {}
    sources: Counts = {}
    top: Annotated[list[TopKernel], Meta(max_length=256)] = []
    unpriced: Counts = {}
    warnings: list[Text] = []
    peak_allocated_bytes: Bytes = 0
    peak_reserved_bytes: Bytes = 0
    oom: Flag = False
    ops: Count = 0
    host_lazy_bytes: Bytes = 0
    host_work: dict[Name, Total] = {}
    host_held_bytes: dict[Name, Bytes] = {}
    moe_routers: list[Router] = []
    stand_ins: dict[Name, Name] = {}
    unknown_reads: Counts = {}
    failed_value_executions: Counts = {}


class OutOfMemory(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="oom"):
    """An allocation that failed, as a map. `holders`: bytes by category of what holds them."""

    device: Rank
    requested_bytes: Bytes
    capacity_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    now_ps: Ps
    holders: dict[Name, Bytes] = {}
