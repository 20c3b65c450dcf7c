"""What summary.json holds, as checked types; docs/results.md says what each key means.

Times are seconds and sizes bytes unless a name says otherwise. Every type has defaults, so that a partial
summary (of a run that failed early, or of an older version) can be read.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec

from netsim.outside import OutsideError, printable

SCHEMA = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
"""Of a rank, node, step or expert."""
Seconds = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Share = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Scalar = str | int | float | bool | None
Status = Literal["ok", "failed", "deadlock", "oom", "interrupted"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts: immutable, named fields only."""


class StepTime(Part, frozen=True, kw_only=True):
    """One step of the job: `virtual_s` from the end of the step before to its own end, `end_s`."""

    index: Number
    virtual_s: Seconds
    end_s: Seconds | None = None


class Spread(Part, frozen=True, kw_only=True):
    """Median, mean, least and largest of the counted steps; all None where there is none."""

    median: Seconds | None = None
    mean: Seconds | None = None
    min: Seconds | None = None
    max: Seconds | None = None


class HostWork(Part, frozen=True, kw_only=True):
    """Host work that was priced and not executed."""

    count: Count = 0
    virtual_s: Seconds = 0.0


class RankSummary(Part, frozen=True, kw_only=True):
    """One rank. The three times are sums over the counted steps and add up to the rank's time."""

    rank: Number
    steps_virtual_s: tuple[Seconds, ...] = ()
    compute_s: Seconds = 0.0
    exposed_communication_s: Seconds = 0.0
    idle_s: Seconds = 0.0
    peak_allocated_bytes: Count = 0
    peak_reserved_bytes: Count = 0
    ops: Count = 0
    oom: bool = False
    host_lazy_bytes: Count = 0
    host_held_bytes: dict[str, Count] = {}
    host_work: dict[str, HostWork] = {}


class Coverage(Part, frozen=True, kw_only=True):
    """Shares of device time by source of the costs; `unpriced` is a share of operators."""

    measured: Share = 0.0
    predicted: Share = 0.0
    unpriced: Share = 0.0


class UnpricedOperator(Part, frozen=True, kw_only=True):
    """An operator without a cost."""

    op: str
    count: Count = 0


class ValueRead(Part, frozen=True, kw_only=True):
    """A source line that read a value that was never computed."""

    where: str
    count: Count = 0


class Router(Part, frozen=True, kw_only=True):
    """The routers of one layer of a mixture of experts, over all ranks."""

    layer: int = 0
    experts: Count = 0
    choices: Count = 0
    calls: Count = 0
    tokens: Count = 0
    busiest_share: Share = 0.0


class CollectiveSummary(Part, frozen=True, kw_only=True):
    """All collectives of one kind, group size, placement and message size."""

    kind: str
    ranks: Number = 0
    nodes: Number = 1
    bytes: Count = 0
    count: Count = 0
    virtual_s: Seconds = 0.0
    algorithm: str = ""
    protocol: str = ""
    channels: Count = 0
    backend: str = ""
    bus_bandwidth_bytes_per_s: Amount | None = None
    bus_limit_bytes_per_s: Amount | None = None

    @property
    def each_s(self) -> float | None:
        """Mean time, None where none ran."""
        return self.virtual_s / self.count if self.count else None


class GpuSummary(Part, frozen=True, kw_only=True):
    """The simulated GPU and its dense peaks in FLOP/s."""

    name: str = ""
    memory_bytes: Count = 0
    peak_flops: dict[str, Amount] = {}


class KernelClass(Part, frozen=True, kw_only=True):
    """All kernels of one class on all ranks."""

    klass: str = msgspec.field(name="class")
    count: Count = 0
    virtual_s: Seconds = 0.0


class TopKernel(Part, frozen=True, kw_only=True):
    """One of the kernels with most time, on all ranks."""

    name: str
    klass: str = msgspec.field(name="class", default="")
    source: str = ""
    count: Count = 0
    virtual_s: Seconds = 0.0


class SimulatorSummary(Part, frozen=True, kw_only=True):
    """What the simulator did, and its memory."""

    events: Count = 0
    rollbacks: Count = 0
    undone_events: Count = 0
    records: Count = 0
    peak_rss_bytes: Count = 0


class StandIn(Part, frozen=True, kw_only=True):
    """A library that was not installed and that phantom stood in for."""

    library: str
    version: str = ""
    ranks: Count = 0


class Fault(Part, frozen=True, kw_only=True):
    """What went wrong on a rank, such as an out-of-memory error."""

    rank: Number = 0
    kind: str = ""
    device: int = 0
    now_ps: Count = 0
    requested_bytes: Count = 0
    allocated_bytes: Count = 0
    reserved_bytes: Count = 0
    capacity_bytes: Count = 0
    holders: dict[str, int] = {}


class Failure(Part, frozen=True, kw_only=True):
    """Why the simulator ended the job."""

    kind: str = ""
    message: str = ""


class Launch(Part, frozen=True, kw_only=True):
    """A launch before the last, where the command starts its ranks several times."""

    steps: Count = 0
    step_virtual_s: Spread = Spread()
    status: Status = "ok"


class Detail(Part, frozen=True, kw_only=True):
    """Shares of the recorded ranks' time in the counted recorded steps; the four add up to 1."""

    steps: tuple[Number, ...] = ()
    ranks: Count = 0
    compute: Share = 0.0
    transfer: Share = 0.0
    waiting_for_ranks: Share = 0.0
    idle: Share = 0.0
    bubble: Share | None = None


class LinkKind(Part, frozen=True, kw_only=True):
    """All used links of one kind in the counted recorded steps."""

    kind: str
    links: Count = 0
    capacity_bytes_per_s: Amount = 0.0
    bytes: Amount = 0.0
    utilisation: Share = 0.0
    busiest: str = ""
    busiest_utilisation: Share = 0.0
    peak_utilisation: Share = 0.0


class Summary(Part, frozen=True, kw_only=True):
    """summary.json. What is None in `_IF_THERE` is left out of the file; other None are written as null."""

    schema: int = SCHEMA
    command: tuple[str, ...] = ()
    cluster: str = ""
    world_size: Number = 1
    nodes: Number = 1
    status: Status = "failed"
    steps: tuple[StepTime, ...] = ()
    step_virtual_s: Spread = Spread()
    ranks: tuple[RankSummary, ...] = ()
    mfu: Share | None = None
    coverage: Coverage = Coverage()
    unpriced_ops: tuple[UnpricedOperator, ...] = ()
    unknown_value_reads: tuple[ValueRead, ...] = ()
    moe_routers: tuple[Router, ...] = ()
    collectives: tuple[CollectiveSummary, ...] = ()
    gpus_per_node: Number | None = None
    gpu: GpuSummary | None = None
    kernels: tuple[KernelClass, ...] = ()
    top_kernels: tuple[TopKernel, ...] = ()
    wall_s: Seconds = 0.0
    simulator: SimulatorSummary | None = None
    stand_ins: tuple[StandIn, ...] = ()
    warnings: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    failure: Failure | None = None
    earlier_launches: tuple[Launch, ...] | None = None
    moe_routing: str | None = None
    tokens_per_s: Amount | None = None
    samples_per_s: Amount | None = None
    options: dict[str, Scalar] | None = None
    detail: Detail | None = None
    links: tuple[LinkKind, ...] | None = None

    def warned(self, *texts: str) -> Summary:
        """The same with more warnings."""
        return msgspec.structs.replace(self, warnings=(*self.warnings, *texts)) if texts else self

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the simulated GPU, None where it is not known."""
        return self.gpu.memory_bytes or None if self.gpu is not None else None


_IF_THERE = {
    Summary: (
        *("gpus_per_node", "gpu", "simulator", "earlier_launches", "moe_routing", "tokens_per_s"),
        *("samples_per_s", "options", "detail", "links"),
    ),
    Detail: ("bubble",),
    Spread: ("median", "mean", "min", "max"),
    StepTime: ("end_s",),
}


def summary_from(value: Any, *, name: str = "the summary") -> Summary:
    """Checks a parsed summary.json; keys that are not known are passed over (newer versions add some).

    `name` stands for the file in messages. Raises OutsideError naming the key and what it must be.
    """
    if not isinstance(value, dict) or "schema" not in value:
        raise OutsideError(f"{name} is not the summary of a run: it has no field schema")
    schema = value["schema"]
    if schema != SCHEMA or isinstance(schema, bool):
        raise OutsideError(
            f"{name}: field schema is {schema!r:.60}, this phantom reads {SCHEMA}; "
            "use the version of phantom that wrote it, or simulate the job again"
        )
    try:
        return msgspec.convert(value, Summary)
    except msgspec.ValidationError as error:
        text = str(error).replace(" - at `$.", ": at `").rstrip("`")
        raise OutsideError(f"{name} is damaged ({text}`); simulate the job again") from None


def plain(part: Part) -> dict[str, Any]:
    """What JSON holds of a part: field names as in the file, without optional keys that are None."""
    left_out = _IF_THERE.get(type(part), ())  # type: ignore[call-overload]
    result = {}
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if value is None and field.name in left_out:
            continue
        result[field.encode_name] = _plain_value(value)
    return result


def _plain_value(value: Any) -> Any:
    if isinstance(value, Part):
        return plain(value)
    if isinstance(value, tuple):
        return [_plain_value(each) for each in value]
    if isinstance(value, dict):
        return {printable(key): _plain_value(each) for key, each in value.items()}
    return printable(value) if isinstance(value, str) else value


def to_json(summary: Summary, *, indent: int | None = None) -> str:
    """The text of summary.json."""
    return json.dumps(plain(summary), indent=indent)
