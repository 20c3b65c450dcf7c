"""The published logs of `data/nccl.csv`, by source, and the preset that predicts each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from netsim.calibrate.measurements import DATA, Measurement, measurement_of, nccl_table
from netsim.cluster import load_cluster
from netsim.cluster.spec import ClusterSpec

SIZE_RANGES = (
    (0, 1 << 16, "< 64 KiB"),
    (1 << 16, (1 << 22) + 1, "64 KiB to 4 MiB"),
    ((1 << 22) + 1, 1 << 62, "> 4 MiB"),
)


@dataclass(frozen=True)
class Source:
    """Rows of data/nccl.csv that one preset predicts: those with the texts of `cells` in these columns.

    `fitted`: every second row fitted the preset. `version` is NCCL's where the source states it. `note`
    explains an error above 20 %. `launch_us`: one process drove all GPUs, and at small sizes the log shows
    this much per GPU.
    """

    name: str
    preset: str
    cells: Mapping[str, str]
    fitted: bool
    version: str = ""
    note: str = ""
    launch_us: float = 0.0

    def holds(self, row: Mapping[str, str]) -> bool:
        """Whether a row belongs to this source."""
        return all(text in row[column] for column, text in self.cells.items())


EKS_NOTE = (
    "the other log of the same instance type is up to 2.3 times faster at 64 to 256 MiB: old plug-in and NCCL"
)

HELD_NOTE = (
    "below 4 MiB its times hold the host's: one process drives all GPUs, or a loop waits for each call; "
    "nccl_within_node.csv.gz has the kernels back to back"
)

SOURCES = (
    Source("vTrain A100, 2-8 GPUs", "a100-dgx", {"gpu": "A100", "source": "vTrain"}, False, launch_us=11.5),
    Source(
        "ml-engineering A100, 8 GPUs",
        "a100-dgx",
        {"gpu": "A100 (single"},
        False,
        note=HELD_NOTE,
        launch_us=5.8,
    ),
    Source("vTrain V100, 2-8 GPUs", "v100-dgx", {"gpu": "V100", "source": "vTrain"}, True),
    Source(
        "ml-engineering H200, torch benchmark",
        "h200-dgx",
        {"gpu": "H200 SXM", "kind": "all_reduce_bench", "algo": "default"},
        False,
        "2.27",
        HELD_NOTE,
    ),
    Source(
        "ml-engineering H200, 8 and 16 GiB",
        "h200-dgx",
        {"gpu": "H200 SXM", "kind": "nccl-tests", "collective": "all_reduce"},
        False,
        "2.27",
    ),
    Source(
        "ml-engineering B200, 8 GiB",
        "b200-dgx",
        {"gpu": "B200", "kind": "nccl-tests", "source": "stas00"},
        False,
    ),
    Source("AWS P6-B200, 8 GPUs", "b200-aws-p6", {"gpu": "P6-B200", "n_nodes": "1"}, False, note=HELD_NOTE),
    Source("AWS P6-B200, 32 GPUs", "b200-aws-p6", {"gpu": "P6-B200", "n_nodes": "4"}, True),
    Source("AWS p5 H100, 16 GPUs", "h100-aws-p5", {"gpu": "p5.48xlarge", "source": "lines 189"}, True),
    Source(
        "AWS p5 H100 on EKS, 16 GPUs",
        "h100-aws-p5",
        {"gpu": "p5.48xlarge", "source": "EKS"},
        False,
        "2.18",
        EKS_NOTE,
    ),
    Source("AWS p4de A100, 16 GPUs", "a100-aws-p4de", {"gpu": "p4de"}, True),
    Source("CoreWeave GB200, 72 GPUs", "gb200-nvl72", {"source": "coreweave", "n_gpus": "72"}, True, "2.27"),
    Source(
        "CoreWeave GB200, 144 GPUs", "gb200-nvl72", {"source": "coreweave", "n_gpus": "144"}, True, "2.27"
    ),
)


def all_rows_of_source(source: Source, folder: Path = DATA) -> list[Measurement]:
    """Measurements of a source from 1 KiB on."""
    found = [measurement_of(r, source=source.name) for r in nccl_table(folder) if source.holds(r)]
    rows = [m for m in found if m is not None and m.size_bytes >= 1024]
    if source.launch_us:
        rows = [replace(m, launch_us=source.launch_us, gpus_per_process=m.ranks) for m in rows]
    return rows


def rows_of_source(source: Source) -> tuple[list[Measurement], list[Measurement]]:
    """Fitted and held-out measurements of a source."""
    rows = all_rows_of_source(source)
    if not source.fitted:
        return [], rows
    return rows[0::2], rows[1::2]


def cluster_of(source: Source) -> ClusterSpec:
    """The preset of a source, with the NCCL version that the source states."""
    cluster = load_cluster(source.preset)
    return replace(cluster, nccl=replace(cluster.nccl, version=source.version)) if source.version else cluster
