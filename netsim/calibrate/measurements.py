"""Measured collective times: from the repository's tables and from nccl-tests' output."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from netsim.errors import ClusterError
from netsim.operation import bus_factor

DATA = Path(__file__).parents[1] / "data"

LAUNCH_US = 3.9
"""Host time of nccl-tests per GPU that one process drives: its floor at small sizes (2 GPUs 8.5 us, 8 GPUs
31 us).
"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured time of a collective on an otherwise idle network.

    `size_bytes` is NCCL's message size. Where one process drives several GPUs (`gpus_per_process`), times
    below `launch_us` (0: `LAUNCH_US`) for each of them show how fast that process launches, not the
    network.
    """

    source: str
    kind: str
    ranks: int
    nodes: int
    size_bytes: int
    time_us: float
    gpus_per_process: int = 1
    launch_us: float = 0.0
    algorithm: str = ""
    identifier: str = ""
    dtype: str = "float32"


def open_table(path: Path) -> TextIO:
    """A table as text, compressed (".gz") or not."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def nccl_table(folder: Path = DATA) -> list[dict[str, str]]:
    """Rows of nccl.csv as read."""
    with (folder / "nccl.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measurement_of(row: dict[str, str], *, source: str, peak_bytes: int = 1 << 34) -> Measurement | None:
    """A row of data/nccl.csv; None where it is no collective of known size on a known number of GPUs.

    A row that states only a bus bandwidth is the time at its size, or at `peak_bytes` if it is a peak
    without a size.
    """
    kind = row["collective"]
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") or not row["n_gpus"]:
        return None
    ranks, nodes = int(row["n_gpus"]), int(row["n_nodes"] or 1)
    size = int(row["size_bytes"]) if row["size_bytes"].isdigit() else 0 if row["size_bytes"] else peak_bytes
    if not size:
        return None
    if row["time_us"]:
        time_us = float(row["time_us"])
    elif row["busbw_gbps"]:
        time_us = size * bus_factor(kind, ranks) / (float(row["busbw_gbps"]) * 1e3)
    else:
        return None
    algorithm = "Ring" if row["algo"].startswith("Ring (N") and "choice" not in row["algo"] else ""
    return Measurement(
        source=source,
        kind=kind,
        ranks=ranks,
        nodes=nodes,
        size_bytes=size,
        time_us=time_us,
        algorithm=algorithm,
        identifier=row["id"],
    )


def a100_all_reduce(*, smallest: int = 1024, cold: bool = False, folder: Path = DATA) -> list[Measurement]:
    """nccl_all_reduce_a100.csv, out of place, from `smallest` bytes on.

    A row is cold if it took more than 1.5 times as long as the in-place one of the same size and world;
    cold rows are left out unless asked for.
    """
    with (folder / "nccl_all_reduce_a100.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    times = {(r["world_size"], r["size_bytes"], r["inplace"]): float(r["time_us"]) for r in rows}
    result = []
    for r in rows:
        world, size = int(r["world_size"]), int(r["size_bytes"])
        if r["inplace"] != "0" or size < smallest:
            continue
        in_place = times.get((r["world_size"], r["size_bytes"], "1"), float("inf"))
        if not cold and float(r["time_us"]) > 1.5 * in_place:
            continue
        result.append(
            Measurement(
                source="nccl_all_reduce_a100.csv",
                kind="all_reduce",
                ranks=world,
                nodes=max(1, world // 8),
                size_bytes=size,
                time_us=float(r["time_us"]),
                gpus_per_process=world if world <= 8 else 1,
            )
        )
    return result


_KIND = re.compile(r"(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|all_to_all|sendrecv)")
_DEVICE = re.compile(r"#\s+Rank\s+(\d+).*?Pid\s+(\d+)\s+on\s+(\S+)\s+device", re.IGNORECASE)


def parse_nccl_tests(
    text: str, *, file: str, kind: str = "", nodes: int = 0, ranks: int = 0
) -> list[Measurement]:
    """Read the standard output of nccl-tests: out-of-place times by size.

    World size, servers and GPUs per process come from the "# Rank ..." lines; `kind`, `nodes` and `ranks`
    replace or supply what the output lacks. Raises `ClusterError` naming `file` where something is missing
    or no row is found.
    """
    hosts: list[str] = []
    pids: dict[str, int] = {}
    for match in _DEVICE.finditer(text):
        hosts.append(match.group(3))
        key = f"{match.group(3)}:{match.group(2)}"
        pids[key] = pids.get(key, 0) + 1
    ranks = ranks or len(hosts)
    nodes = nodes or len(set(hosts))
    if not kind:
        found = re.search(r"Collective test starting:\s*(\w+?)_perf", text) or _KIND.search(text)
        found = found or _KIND.search(Path(file).name)
        if found:
            kind = {"alltoall": "all_to_all", "sendrecv": "p2p"}.get(found.group(1), found.group(1))
    if not kind and ranks:
        kind = "all_reduce" if re.search(r"\bredop\b", text) and not re.search(r"\broot\b", text) else ""
    for what, value in (("kind", kind), ("ranks", ranks), ("nodes", nodes)):
        if not value:
            raise ClusterError(f"{file}: the output does not tell {what}; give it on the command line")
    result = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].isdigit() or not fields[1].isdigit():
            continue
        # size count type [redop] [root] time algbw busbw [#wrong] time algbw busbw [#wrong]
        numbers = [f for f in fields[3:] if re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", f) or f == "N/A"]
        words = [f for f in fields[2:6] if re.fullmatch(r"[a-zA-Z]\w*", f) and f != "N/A"]
        start = 2 + len(words)
        if start < len(fields) and re.fullmatch(r"-?\d+", fields[start]) and len(fields) - start in (9, 7):
            start += 1
        if len(numbers) < 3 or start >= len(fields):
            continue
        try:
            time_us = float(fields[start])
        except ValueError:
            continue
        if time_us > 0 and int(fields[0]) > 0:
            result.append(
                Measurement(
                    source=file,
                    kind=kind,
                    ranks=ranks,
                    nodes=nodes,
                    size_bytes=int(fields[0]),
                    time_us=time_us,
                    gpus_per_process=max(pids.values(), default=1),
                )
            )
    if not result:
        raise ClusterError(f"{file}: no nccl-tests result lines (size, count, type, ..., time, algbw, busbw)")
    return result
