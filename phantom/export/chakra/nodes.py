"""Makes Chakra nodes and writes them to a file of length-prefixed messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from phantom.export.chakra import execution_trace_pb2 as pb
from phantom.timeline.protobuf import varint

SCHEMA_VERSION = "1.0.0"
PS_PER_US = 1_000_000


class Carry:
    """Rounds durations to whole microseconds so that their sum stays right."""

    def __init__(self) -> None:
        self._left_ps = 0

    def round_us(self, duration_ps: int) -> int:
        """The next duration in microseconds."""
        whole, self._left_ps = divmod(self._left_ps + duration_ps, PS_PER_US)
        return whole


def attribute(name: str, value: bool | int | str) -> Any:
    """An attribute of the type that ASTRA-sim's feeder converts without complaint."""
    if isinstance(value, bool):
        return pb.AttributeProto(name=name, bool_val=value)
    if isinstance(value, int):
        return pb.AttributeProto(name=name, int64_val=value)
    return pb.AttributeProto(name=name, string_val=value)


def node(
    number: int,
    name: str,
    kind: pb.NodeType,
    *,
    deps: Iterable[int],
    start_ps: int,
    duration_us: int,
    attributes: dict[str, bool | int | str],
) -> Any:
    """A node; every node says whether it runs on the host (`is_cpu_op`)."""
    attributes = {"is_cpu_op": False, **attributes}
    return pb.Node(
        id=number,
        name=name,
        type=kind,
        data_deps=sorted(set(deps)),
        start_time_micros=max(start_ps, 0) // PS_PER_US,
        duration_micros=duration_us,
        attr=[attribute(key, value) for key, value in attributes.items()],
    )


class TraceFile:
    """One rank's file. A context manager."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self.write(pb.GlobalMetadata(version=SCHEMA_VERSION, attr=[attribute("schema", "phantom")]))

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, message: Any) -> None:
        """Appends one message."""
        body = message.SerializeToString(deterministic=True)
        self._file.write(varint(len(body)) + body)


def read_file(path: Path) -> tuple[Any, list[Any]]:
    """Metadata and nodes of a file. Raises ValueError where a message is cut short."""
    data = path.read_bytes()
    bodies = list(_bodies(data, path))
    if not bodies:
        raise ValueError(f"{path}: no message in it")
    return pb.GlobalMetadata.FromString(bodies[0]), [pb.Node.FromString(body) for body in bodies[1:]]


def _bodies(data: bytes, path: Path) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = shift = 0
        while True:
            if at >= len(data):
                raise ValueError(f"{path}: ends inside a length")
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + length > len(data):
            raise ValueError(f"{path}: ends inside a message")
        yield data[at : at + length]
        at += length


def values_of(message: Any) -> dict[str, Any]:
    """A node's attributes as a map."""
    return {entry.name: getattr(entry, entry.WhichOneof("value")) for entry in message.attr}
