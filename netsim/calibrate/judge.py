"""Errors on a folder of published tables, every row a check: none of them is used to fit.

The folder holds any of `aic_nccl.csv`, `nccl.csv`, `nccl_all_reduce_a100.csv` and `vidur_network.csv`, with
the columns of the published tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from netsim.calibrate.fit import errors
from netsim.calibrate.measurements import Measurement, a100_all_reduce
from netsim.calibrate.sources import SIZE_RANGES, SOURCES, all_rows_of_source, cluster_of
from netsim.calibrate.within_node import cluster_of_row, vidur_rows, within_node_rows
from netsim.cluster import ClusterSpec, load_cluster


@dataclass(frozen=True)
class Errors:
    """Errors of one class of one table in percent: predicted / measured - 1."""

    table: str
    gpu: str
    klass: str
    rows: int
    median: float
    p90: float
    worst: float
    bias: float

    def as_json(self) -> dict[str, str | int | float]:
        """The fields under the names of the printed list."""
        fields = asdict(self)
        return {("class" if name == "klass" else name): value for name, value in fields.items()}


@dataclass(frozen=True)
class Check:
    """One row with its signed error."""

    table: str
    gpu: str
    measurement: Measurement
    error: float

    @property
    def klass(self) -> str:
        """Operation and range of sizes, and whether it is between nodes."""
        m = self.measurement
        size = next(name for low, high, name in SIZE_RANGES if low <= m.size_bytes < high)
        return f"{m.kind} {size}" + (f", {m.nodes} nodes" if m.nodes > 1 else "")


def checks(folder: Path) -> list[Check]:
    """Every row of the folder's tables that a preset can predict."""
    return [
        Check(table, gpu, m, float(error))
        for table, gpu, cluster, rows in _tables(folder)
        if rows
        for m, error in zip(rows, errors(cluster, rows).tolist())
    ]


def _tables(folder: Path) -> Iterator[tuple[str, str, ClusterSpec, Sequence[Measurement]]]:
    """Table, GPU, cluster and rows."""
    for name in ("aic_nccl.csv", "nccl_within_node.csv.gz"):
        if (folder / name).is_file():
            by_source: dict[str, list[Measurement]] = {}
            for m in within_node_rows(folder / name):
                by_source.setdefault(m.source, []).append(m)
            for source, rows in sorted(by_source.items()):
                yield name, source.split()[0], cluster_of_row(rows[0]), rows
    if (folder / "nccl_all_reduce_a100.csv").is_file():
        rows = a100_all_reduce(folder=folder)
        yield "nccl_all_reduce_a100.csv", "A100", load_cluster("a100-azure-nd"), rows
    if (folder / "nccl.csv").is_file():
        for log in SOURCES:
            yield "nccl.csv", log.name, cluster_of(log), all_rows_of_source(log, folder)
    if (folder / "vidur_network.csv").is_file():
        by_node: dict[str, list[Measurement]] = {}
        for m in vidur_rows(folder / "vidur_network.csv"):
            by_node.setdefault(m.source, []).append(m)
        for node, rows in sorted(by_node.items()):
            yield "vidur_network.csv", node, cluster_of_row(rows[0]), rows


def summarise(found: Sequence[Check]) -> list[Errors]:
    """Errors by table, GPU and class."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for check in found:
        groups.setdefault((check.table, check.gpu, check.klass), []).append(100.0 * check.error)
    return [Errors(*key, len(values), *_figures(values)) for key, values in sorted(groups.items())]


def _figures(values: Sequence[float]) -> tuple[float, float, float, float]:
    signed = np.array(values)
    size = np.abs(signed)
    figures = (np.median(size), np.quantile(size, 0.9), size.max(), np.median(signed))
    return tuple(round(float(x), 2) for x in figures)  # type: ignore[return-value]
