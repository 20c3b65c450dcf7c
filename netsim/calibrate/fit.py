"""Fits a cluster's latency and efficiency parameters to measured collective times.

Levenberg-Marquardt on the logarithms of the parameters and of predicted over measured time, with Huber
weights (logs have outliers) and a wide log-normal prior, so that what the data do not determine stays at
its prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from netsim.calibrate.measurements import LAUNCH_US, Measurement
from netsim.calibrate.planned import floor_us, operation_of, planned
from netsim.calibrate.within_node import fit_set, row_of_inside, timing_line
from netsim.cluster.spec import ClusterSpec, ProtocolTiming
from netsim.cluster.timing_defaults import nccl_constants_as_timing
from netsim.nccl.collectives import Planner
from netsim.nccl.startup import channel_spread, hops, model_bandwidth
from netsim.parts import Floats

# Prior: standard deviations of the logarithm of each kind of parameter.
PRIOR_SIGMA = {
    "base_us": 0.4,
    "intra_us": 0.8,
    "inter_us": 0.5,
    "efficiency": 0.15,
    "channel_us": 1.0,
    "channel_inter_us": 1.0,
    "nic_efficiency": 0.25,
    "nvlink_efficiency": 0.1,
    "launch_us": 0.3,
}
ROW_SIGMA = 0.06
HUBER = 2.0
BOUNDS = {"efficiency": (0.1, 1.3), "nic_efficiency": (0.1, 1.0), "nvlink_efficiency": (0.3, 1.0)}


@dataclass(frozen=True)
class Row:
    """What the time of one measurement depends on: NCCL's choice and its hops, and bytes over line rates."""

    measurement: Measurement
    key: str
    channels: int
    intra: float
    inter: float
    model_s: float
    nic_s: float
    nvlink_s: float
    other_s: float


def row_of(cluster: ClusterSpec, planner: Planner, measurement: Measurement) -> Row:
    """Work out a measurement's row on a topology that `planner` knows."""
    op = operation_of(measurement)
    group = planner.group(op.ranks)
    model = planner.model(group)
    pick = planner.pick(op)
    part = planner.plan(op)[0]
    assert part.shape is not None
    nic = nvlink = other = 0.0
    links = planner.topology.links
    for i, load in zip(part.shape.links.tolist(), part.shape.loads.tolist()):
        seconds = load * op.size_bytes / links[i].capacity_bytes_per_s
        name = links[i].name
        if "nvswitch" in name or "nvlink" in name:
            nvlink = max(nvlink, seconds * cluster.node.nvlink.efficiency)
        elif "/nic" in name and "/pcie" not in name:
            nic = max(nic, seconds * cluster.node.nic_efficiency)
        else:
            other = max(other, seconds)
    intra, inter = hops(model, op.kind, pick.algorithm)
    model_s = op.size_bytes / model_bandwidth(model, op.kind, pick, op.size_bytes)
    return Row(
        measurement,
        f"{pick.algorithm}_{pick.protocol}",
        pick.channels,
        intra,
        inter,
        model_s,
        nic,
        nvlink,
        other,
    )


def predict_us(
    cluster: ClusterSpec, measurements: Sequence[Measurement], *, launch_us: float = LAUNCH_US
) -> Floats:
    """Predicted times of measurements, launch floor included."""
    return np.array(
        [
            max(floor_us(m, launch_us), planner.choice(operation_of(m)).estimate_s * 1e6)
            for m, planner in planned(cluster, measurements)
        ]
    )


def errors(
    cluster: ClusterSpec, measurements: Sequence[Measurement], *, launch_us: float = LAUNCH_US
) -> Floats:
    """Signed relative errors: predicted over measured minus one."""
    return (
        predict_us(cluster, measurements, launch_us=launch_us) / np.array([m.time_us for m in measurements])
        - 1.0
    )


@dataclass(frozen=True)
class Fit:
    """A calibrated cluster, the benchmark's launch time per GPU of a process, and the (key, field) of
    timing that were fitted.
    """

    cluster: ClusterSpec
    launch_us: float
    fitted: frozenset[tuple[str, str]]
    within_node: frozenset[str] = frozenset()
    """Keys of the times inside a node that were fitted."""

    @property
    def seen(self) -> frozenset[str]:
        """Timing keys of which anything was fitted."""
        return frozenset(key for key, _ in self.fitted)


def toml_of(fit: Fit, *, name: str, base: str) -> str:
    """A cluster file that takes `base` and overrides what was fitted."""
    node, nccl = fit.cluster.node, fit.cluster.nccl
    lines = [
        f'name = "{name}"',
        f'base = "{base}"',
        "",
        "[node]",
        f"nic_efficiency = {node.nic_efficiency:g}",
    ]
    if node.nvlink.kind != "none":
        lines.append(f"nvlink = {{ efficiency = {node.nvlink.efficiency:g} }}")
    lines += [
        "",
        "[nccl]",
        f"channel_us = {nccl.channel_us:g}",
        f"channel_inter_us = {nccl.channel_inter_us:g}",
    ]
    lines += ["", "[nccl.timing]", *timing_lines(fit)]
    if fit.within_node:
        lines += ["", "[nccl.within_node]"]
        lines += [timing_line(key, nccl.within_node[key]) for key in sorted(fit.within_node)]
    return "\n".join(lines) + "\n"


def timing_lines(fit: Fit) -> list[str]:
    """Lines of the [nccl.timing] table for the keys that were fitted."""
    return [
        f"{key} = {{ "
        + ", ".join(
            f"{f.name} = {getattr(fit.cluster.nccl.timing[key], f.name):g}" for f in fields(ProtocolTiming)
        )
        + " }"
        for key in sorted(fit.seen)
    ]


def _fits_launch(m: Measurement) -> bool:
    return m.gpus_per_process > 1 and not m.launch_us


def _sigma(key: str, name: str) -> float:
    """Prior width; NVLS's base holds the wait for its channels, of which NCCL's constants say nothing."""
    return 0.6 if name == "base_us" and key.startswith("nvls") else PRIOR_SIGMA[name]


class _Model:
    """The parameters that a set of rows can see, as a vector of logarithms."""

    def __init__(self, cluster: ClusterSpec, rows: list[Row], prior: dict[str, ProtocolTiming]) -> None:
        self.cluster = cluster
        self.rows = rows
        self.names: list[tuple[str, str]] = []
        values: list[float] = []
        for key in sorted({r.key for r in rows}):
            own = [r for r in rows if r.key == key]
            for f in fields(ProtocolTiming):
                hopless = {
                    "intra_us": not any(r.intra for r in own),
                    "inter_us": not any(r.inter for r in own),
                }
                if hopless.get(f.name):
                    continue
                self.names.append((key, f.name))
                values.append(max(1e-3, getattr(prior[key], f.name)))
        shared = {
            "channel_us": cluster.nccl.channel_us,
            "channel_inter_us": cluster.nccl.channel_inter_us if any(r.inter for r in rows) else 0.0,
            "nic_efficiency": cluster.node.nic_efficiency if any(r.nic_s for r in rows) else 0.0,
            "launch_us": LAUNCH_US if any(_fits_launch(r.measurement) for r in rows) else 0.0,
            "nvlink_efficiency": cluster.node.nvlink.efficiency if any(r.nvlink_s for r in rows) else 0.0,
        }
        for name, value in shared.items():
            if value > 0:
                self.names.append(("", name))
                values.append(value)
        self.prior = np.log(np.array(values))
        self.sigma = np.array([_sigma(key, name) for key, name in self.names])
        self.low = np.array([math.log(BOUNDS.get(name, (1e-3, 1e5))[0]) for _, name in self.names])
        self.high = np.array([math.log(BOUNDS.get(name, (1e-3, 1e5))[1]) for _, name in self.names])
        self.measured = np.log(np.array([r.measurement.time_us for r in rows]))
        self.processes = np.array(
            [floor_us(m, 1.0) if _fits_launch(m) else 0.0 for m in (r.measurement for r in rows)]
        )
        self.floor = np.array([floor_us(r.measurement, 0.0) for r in rows])
        self._arrays()

    def _arrays(self) -> None:
        position = {name: i for i, name in enumerate(self.names)}
        rows = self.rows
        self.index = {
            f.name: np.array([position.get((r.key, f.name), -1) for r in rows])
            for f in fields(ProtocolTiming)
        }
        self.shared = {name: position.get(("", name), -1) for _, name in self.names}
        self.intra = np.array([r.intra for r in rows])
        self.inter = np.array([r.inter for r in rows])
        self.spread = np.array([channel_spread(r.key.split("_")[0], r.channels) for r in rows])
        self.seconds = {
            n: np.array([getattr(r, n) for r in rows]) for n in ("model_s", "nic_s", "nvlink_s", "other_s")
        }

    def predict(self, vector: Floats) -> Floats:
        """Logarithms of the predicted times in microseconds."""
        value = np.append(np.exp(vector), 0.0)
        base, intra, inter, efficiency = (value[self.index[f.name]] for f in fields(ProtocolTiming))
        channel = value[self.shared.get("channel_us", -1)]
        channel_inter = value[self.shared.get("channel_inter_us", -1)]
        start = base + self.intra * intra + self.inter * inter
        start = start + self.spread * (channel + self.inter * channel_inter)
        transfer = np.maximum(self.seconds["model_s"] / efficiency, self.seconds["other_s"])
        for name in ("nic", "nvlink"):
            place = self.shared.get(f"{name}_efficiency", -1)
            if place >= 0:
                transfer = np.maximum(transfer, self.seconds[f"{name}_s"] / value[place])
        floor = self.floor + self.processes * value[self.shared.get("launch_us", -1)]
        return np.log(np.maximum(floor, start + transfer * 1e6))

    def solve(self, *, steps: int = 60) -> Floats:
        """Best vector."""
        vector = self.prior.copy()
        damping = 1.0
        cost = self._cost(vector)
        for _ in range(steps):
            residual = (self.predict(vector) - self.measured) / ROW_SIGMA
            weight = np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12))
            jacobian = np.empty((len(self.rows), len(vector)))
            for i in range(len(vector)):
                moved = vector.copy()
                moved[i] += 1e-4
                jacobian[:, i] = (self.predict(moved) - self.predict(vector)) / 1e-4 / ROW_SIGMA
            normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1.0 / self.sigma**2)
            gradient = jacobian.T @ (weight * residual) + (vector - self.prior) / self.sigma**2
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = np.clip(vector + np.clip(step, -0.5, 0.5), self.low, self.high)
            trial_cost = self._cost(trial)
            if trial_cost < cost:
                converged = cost - trial_cost < 1e-9 * cost
                vector, cost, damping = trial, trial_cost, max(1e-6, damping / 3)
                if converged:
                    break
            else:
                damping *= 4
                if damping > 1e9:
                    break
        return vector

    def _cost(self, vector: Floats) -> float:
        residual = np.abs(self.predict(vector) - self.measured) / ROW_SIGMA
        huber = np.where(residual < HUBER, residual**2 / 2, HUBER * residual - HUBER**2 / 2)
        return float(huber.sum() + (((vector - self.prior) / self.sigma) ** 2).sum() / 2)

    def apply(self, vector: Floats) -> Fit:
        """The cluster with the fitted values, rounded to four digits."""
        launch_us = LAUNCH_US
        timing = {
            key: {f.name: getattr(t, f.name) for f in fields(t)}
            for key, t in self.cluster.nccl.timing.items()
        }
        node, nccl = self.cluster.node, self.cluster.nccl
        for (key, name), log_value in zip(self.names, vector.tolist()):
            value = float(f"{math.exp(log_value):.4g}")
            if key:
                timing[key][name] = value
            elif name == "nic_efficiency":
                node = replace(node, nic_efficiency=value)
            elif name == "nvlink_efficiency":
                node = replace(node, nvlink=replace(node.nvlink, efficiency=value))
            elif name == "launch_us":
                launch_us = value
            elif name == "channel_us":
                nccl = replace(nccl, channel_us=value)
            else:
                nccl = replace(nccl, channel_inter_us=value)
        nccl = replace(nccl, timing={key: ProtocolTiming(**row) for key, row in timing.items()})
        return Fit(
            replace(self.cluster, node=node, nccl=nccl), launch_us, frozenset(n for n in self.names if n[0])
        )


def rows_of(cluster: ClusterSpec, measurements: Sequence[Measurement]) -> list[Row]:
    """Rows of many measurements."""
    return [row_of(cluster, planner, m) for m, planner in planned(cluster, measurements)]


def fit(
    cluster: ClusterSpec,
    measurements: Sequence[Measurement],
    *,
    prior: dict[str, ProtocolTiming] | None = None,
) -> Fit:
    """Return `cluster` with parameters fitted to the measurements.

    `prior` gives the values that unseen parameters keep near; by default NCCL's own constants.
    """
    inside = [(m, row_of_inside(cluster, planner, m)) for m, planner in planned(cluster, measurements)]
    own = [row for _, row in inside if row is not None]
    within = {**cluster.nccl.within_node, **fit_set(own, start=cluster.nccl.within_node)}
    cluster = replace(cluster, nccl=replace(cluster.nccl, within_node=within))
    fitted = frozenset(row.key for row in own)
    rows = rows_of(cluster, [m for m, row in inside if row is None])
    if not rows:
        return Fit(cluster, LAUNCH_US, frozenset(), fitted)
    if prior is None:
        prior = nccl_constants_as_timing(nvlink=cluster.node.nvlink.kind != "none")
    model = _Model(cluster, rows, prior)
    return replace(model.apply(model.solve()), within_node=fitted)
