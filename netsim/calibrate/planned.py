"""Measurements as operations on a planner of their job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netsim.calibrate.measurements import Measurement
from netsim.cluster import ClusterSpec
from netsim.fabric.topology import Topology
from netsim.nccl.collectives import Planner
from netsim.operation import Operation


def operation_of(m: Measurement) -> Operation:
    """The operation that was measured, on the first ranks of the cluster."""
    if m.kind == "p2p":
        return Operation(kind="p2p", source=0, destination=m.ranks - 1, size_bytes=m.size_bytes)
    return Operation(kind=m.kind, ranks=tuple(range(m.ranks)), size_bytes=m.size_bytes, dtype=m.dtype, root=0)


def planner_for(cluster: ClusterSpec, m: Measurement) -> Planner:
    """A planner on a job of the measurement's size."""
    topology = Topology(cluster, nodes=m.nodes, gpus_per_node=m.ranks // m.nodes)
    environment = {"NCCL_ALGO": m.algorithm} if m.algorithm else {}
    return Planner(topology, environment, seed=0)


def floor_us(m: Measurement, launch_us: float) -> float:
    """What a benchmark shows at least where one process launches on several GPUs."""
    return (m.launch_us or launch_us) * m.gpus_per_process if m.gpus_per_process > 1 else 0.0


def planned(
    cluster: ClusterSpec, measurements: Sequence[Measurement]
) -> Iterator[tuple[Measurement, Planner]]:
    """Each measurement with the planner of its job; jobs alike share one."""
    planners: dict[tuple[int, int, str], Planner] = {}
    for m in measurements:
        key = (m.ranks, m.nodes, m.algorithm)
        if key not in planners:
            planners[key] = planner_for(cluster, m)
        yield m, planners[key]
