"""Fits the times inside a node to nccl-tests tables, by GPU generation and links.

The rows are `data/nccl_within_node.csv.gz`: nccl-tests, out of place, one process with one thread per GPU,
100 (60) back-to-back calls after 40 warm-ups, 2 to 8 GPUs of one node (ai-dynamo/aiconfigurator, commit
095f58a51c4c, Apache-2.0; about half of its configurations). A set of constants belongs to a GPU generation
and its kind of links; NCCL's version acts through its own choice of algorithm, protocol and channels.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from netsim.calibrate.measurements import DATA, LAUNCH_US, Measurement, open_table
from netsim.calibrate.planned import floor_us, operation_of, planner_for
from netsim.cluster import ClusterSpec, load_cluster
from netsim.cluster.spec import WithinNodeTiming
from netsim.cluster.within_node import within_node_set
from netsim.nccl.collectives import Planner
from netsim.nccl.startup import channel_spread, hops
from netsim.operation import COLLECTIVES, bus_factor
from netsim.parts import Floats

TABLE = "nccl_within_node.csv.gz"
VIDUR_TABLE = "vidur_network.csv.gz"
PRESETS_BY_SYSTEM = {
    "a100_dgx": "a100-dgx",
    "a100_sxm": "a100-dgx",
    "h100_dgx": "h100-dgx",
    "h100_sxm": "h100-dgx",
    "h200_sxm": "h200-dgx",
    "b200_sxm": "b200-dgx",
    "b300_sxm": "b300-dgx",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s-box",
    "rtx_pro_6000_server": "rtx-pro-6000-box",
}
KINDS = {"alltoall": "all_to_all"}
TYPES = {"half": "float16", "int8": "int8"}
FOLDS = 4
ROW_SIGMA = 0.06
HUBER = 2.0
UNUSED = 1e15
"""Rate of a channel that is never the bound."""

FIELDS = tuple(f.name for f in fields(WithinNodeTiming))
# Where the fit starts. WIDTHS: the standard deviation of each parameter's logarithm; what is absent is held.
START: Mapping[str, WithinNodeTiming] = {
    "ll": WithinNodeTiming(
        base_us=6.0,
        hop_us=0.8,
        channel_us=0.1,
        efficiency=1.2,
        channel_bytes_per_s=8e9,
        sharpness=1.3,
        fill_us=0.0,
        fill_bytes=1e6,
        tail=0.3,
    ),
    "ll128": WithinNodeTiming(
        base_us=10.0,
        hop_us=1.5,
        channel_us=0.5,
        efficiency=0.9,
        channel_bytes_per_s=UNUSED,
        sharpness=1.5,
        fill_us=0.0,
        fill_bytes=1e6,
        tail=0.3,
    ),
    "simple": WithinNodeTiming(
        base_us=14.0,
        hop_us=2.0,
        channel_us=1.0,
        efficiency=0.9,
        channel_bytes_per_s=UNUSED,
        sharpness=1.5,
        fill_us=0.0,
        fill_bytes=1e6,
        tail=0.3,
    ),
    "nvls": WithinNodeTiming(
        base_us=20.0,
        hop_us=0.0,
        channel_us=0.0,
        efficiency=0.95,
        channel_bytes_per_s=UNUSED,
        sharpness=1.2,
        fill_us=40.0,
        fill_bytes=1e7,
        tail=0.0,
    ),
    "all_to_all": WithinNodeTiming(
        base_us=9.0,
        hop_us=0.2,
        channel_us=0.0,
        efficiency=0.8,
        channel_bytes_per_s=UNUSED,
        sharpness=1.3,
        fill_us=6.0,
        fill_bytes=3e4,
        tail=0.4,
    ),
    "send_recv": WithinNodeTiming(
        base_us=6.0,
        hop_us=0.0,
        channel_us=0.0,
        efficiency=0.8,
        channel_bytes_per_s=UNUSED,
        sharpness=1.3,
        fill_us=4.0,
        fill_bytes=3e4,
        tail=0.0,
    ),
}
_COMMON = {"base_us": 0.5, "hop_us": 0.8, "channel_us": 1.0, "efficiency": 0.3}
WIDTHS: Mapping[str, Mapping[str, float]] = {
    "ll": {**_COMMON, "channel_bytes_per_s": 0.5, "sharpness": 0.3},
    "ll128": {**_COMMON, "sharpness": 0.3},
    "simple": {**_COMMON, "sharpness": 0.4, "tail": 0.5},
    "nvls": {"base_us": 0.5, "efficiency": 0.2, "sharpness": 0.2, "fill_us": 1.0, "fill_bytes": 1.0},
    "all_to_all": {
        "base_us": 0.5,
        "hop_us": 0.8,
        "efficiency": 0.3,
        "sharpness": 0.3,
        "fill_us": 0.5,
        "fill_bytes": 0.7,
        "tail": 0.5,
    },
    "send_recv": {"base_us": 0.5, "efficiency": 0.3, "sharpness": 0.2, "fill_us": 0.5, "fill_bytes": 0.7},
}


@dataclass(frozen=True)
class Row:
    """What a measurement's time depends on; times of S bytes in microseconds at full efficiency.

    `piece_us` is what one more piece of the loop adds; 0 where the algorithm has no loop. `floor_us`: what
    launching takes where one process drives several GPUs.
    """

    measurement: Measurement
    key: str
    size_bytes: float
    hops: float
    spread: float
    model_us: float
    piece_us: float
    channel_bytes: float
    link_us: float
    floor_us: float = 0.0


def family_of(key: str) -> str:
    """Which of the forms a key takes."""
    return (
        key if key in ("send_recv", "all_to_all") else "nvls" if key.startswith("nvls") else key.split("_")[1]
    )


def within_node_rows(path: Path = DATA / TABLE) -> list[Measurement]:
    """Rows of the table; `source` is "system nccl version"."""
    with open_table(path) as file:
        return [measurement_of_row(row) for row in csv.DictReader(file)]


def vidur_rows(path: Path = DATA / VIDUR_TABLE) -> list[Measurement]:
    """Rows of vidur's table (microsoft/vidur @7d47513363ec, MIT) on nodes that have a preset."""
    with open_table(path) as file:
        rows = [r for r in csv.DictReader(file) if r["node"] in PRESETS_BY_SYSTEM]
    return [
        Measurement(
            source=r["node"],
            kind="p2p" if r["collective"] == "send_recv" else r["collective"],
            ranks=int(r["num_workers"]),
            nodes=max(1, int(r["num_workers"]) // int(r["devices_per_node"])),
            size_bytes=int(r["size_bytes"]),
            time_us=float(r["median_ms"]) * 1e3,
            dtype="float16",
        )
        for r in rows
        if float(r["median_ms"]) > 0 and int(r["size_bytes"]) > 0
    ]


def fitted_measurements() -> list[Measurement]:
    """What the sets are fitted to: collectives of the first table, messages inside a node of the second."""
    messages = [m for m in vidur_rows() if m.kind == "p2p" and m.nodes == 1]
    return [*within_node_rows(), *messages]


def measurement_of_row(row: Mapping[str, str]) -> Measurement:
    """One row of aiconfigurator's table."""
    ranks, system = int(row["num_gpus"]), row["system"]
    per_node = load_cluster(PRESETS_BY_SYSTEM[system]).node.gpus
    return Measurement(
        source=f"{system} {row['nccl']}",
        kind=KINDS.get(row["op_name"], row["op_name"]),
        ranks=ranks,
        nodes=max(1, ranks // per_node),
        size_bytes=int(row["size_bytes"]),
        time_us=float(row["time_us"]),
        dtype=TYPES[row["nccl_dtype"]],
    )


def cluster_of_row(m: Measurement) -> ClusterSpec:
    """The preset of a row's system with the row's NCCL version."""
    system, _, version = m.source.partition(" ")
    return _cluster(PRESETS_BY_SYSTEM[system], ".".join(version.split(".")[:2]))


@lru_cache(maxsize=64)
def _cluster(preset: str, version: str) -> ClusterSpec:
    cluster = load_cluster(preset)
    return cluster if not version else replace(cluster, nccl=replace(cluster.nccl, version=version))


def configuration_of(m: Measurement) -> str:
    """What is left out as a whole: system, operation, type and number of GPUs, over all NCCL versions."""
    return f"{m.source.split()[0]} {m.kind} {m.dtype} {m.ranks}"


def fold_of(m: Measurement) -> int:
    """Fold of a row's configuration."""
    return zlib.crc32(configuration_of(m).encode()) % FOLDS


def rows_by_set(measurements: Sequence[Measurement]) -> dict[str, list[Row]]:
    """Rows by the set of constants that predicts them; those that stay inside a node."""
    planners: dict[tuple[str, int, int], Planner] = {}
    result: dict[str, list[Row]] = {}
    for m in measurements:
        cluster = cluster_of_row(m)
        name = within_node_set(cluster.gpu, cluster.node)
        place = (m.source, m.ranks, m.nodes)
        if place not in planners:
            planners[place] = planner_for(cluster, m)
        result.setdefault(name, []).append(row_of(cluster, planners[place], m))
    return result


def row_of(cluster: ClusterSpec, planner: Planner, m: Measurement) -> Row:
    """Work out a measurement's row on a topology that `planner` knows."""
    op = operation_of(m)
    link_us = planner.link_s(op) * 1e6
    line = cluster.node.nvlink.efficiency if cluster.node.nvlink.kind != "none" else 1.0
    if m.kind == "p2p":
        return Row(m, "send_recv", float(m.size_bytes), 0.0, 0.0, link_us * line, 0.0, 0.0, link_us)
    if COLLECTIVES[m.kind].grouped:
        model_us, peers, piece = link_us * line, m.ranks - 1, m.size_bytes / m.ranks
        return Row(m, "all_to_all", piece, peers - 1.0, 0.0, model_us, model_us / peers, 0.0, link_us)
    model, pick = planner.model(planner.group(op.ranks)), planner.pick(op)
    model_us = m.size_bytes / (model.bandwidth(m.kind, pick.algorithm, pick.protocol) * 1e3)
    return Row(
        measurement=m,
        key=f"{pick.algorithm}_{pick.protocol}",
        size_bytes=float(m.size_bytes),
        hops=hops(model, m.kind, pick.algorithm)[0],
        spread=channel_spread(pick.algorithm, pick.channels),
        model_us=model_us,
        piece_us=model_us / COLLECTIVES[m.kind].ring_steps(m.ranks) if pick.algorithm == "ring" else 0.0,
        channel_bytes=m.size_bytes * bus_factor(m.kind, m.ranks) / pick.channels,
        link_us=link_us,
    )


class _Arrays:
    """Rows of one key as arrays."""

    def __init__(self, rows: Sequence[Row]) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(r, name) for r in rows], dtype=np.float64)

        self.size, self.hops, self.spread = column("size_bytes"), column("hops"), column("spread")
        self.model, self.piece, self.link = column("model_us"), column("piece_us"), column("link_us")
        self.channel, self.floor = column("channel_bytes"), column("floor_us")
        self.measured = np.array([r.measurement.time_us for r in rows])

    def predict(self, t: Mapping[str, float]) -> Floats:
        """Times in microseconds; the same formula as `nccl.within_node`."""
        latency = t["base_us"] + self.hops * t["hop_us"] + self.spread * t["channel_us"]
        transfer = np.maximum(
            (self.model + self.piece * t["tail"]) / t["efficiency"],
            self.channel / t["channel_bytes_per_s"] * 1e6,
        )
        transfer = np.maximum(transfer, self.link)
        p = t["sharpness"]
        filling = t["fill_us"] * self.size / (self.size + t["fill_bytes"])
        return np.maximum((latency**p + transfer**p) ** (1 / p) + filling, self.floor)


def fit_key(rows: Sequence[Row], start: WithinNodeTiming, widths: Mapping[str, float]) -> WithinNodeTiming:
    """Fit one key: Levenberg-Marquardt on logarithms with Huber weights and a log-normal prior at `start`.

    Rows count by the square root of how many their system has, so that a system with four NCCL versions does
    not outvote one with a single version.
    """
    arrays = _Arrays(rows)
    fixed = asdict(start)
    names = [name for name in FIELDS if widths.get(name)]
    prior = np.log(np.array([fixed[name] for name in names]))
    sigma = np.array([widths[name] for name in names])
    systems = [r.measurement.source.split()[0] for r in rows]
    share = np.array([1.0 / math.sqrt(systems.count(s)) for s in systems])
    share *= len(rows) / share.sum()
    measured = np.log(arrays.measured)

    def residual(vector: Floats) -> Floats:
        values = {**fixed, **dict(zip(names, np.exp(vector).tolist()))}
        return (np.log(arrays.predict(values)) - measured) / ROW_SIGMA

    def cost(vector: Floats) -> float:
        size = np.abs(residual(vector))
        huber = np.where(size < HUBER, size**2 / 2, HUBER * size - HUBER**2 / 2)
        return float((share * huber).sum() + (((vector - prior) / sigma) ** 2).sum() / 2)

    vector, damping = prior.copy(), 1.0
    best = cost(vector)
    for _ in range(80):
        here = residual(vector)
        weight = share * np.minimum(1.0, HUBER / np.maximum(np.abs(here), 1e-12))
        steps = np.eye(len(vector)) * 1e-4
        jacobian = np.stack([(residual(vector + step) - here) / 1e-4 for step in steps], axis=1)
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1.0 / sigma**2)
        gradient = jacobian.T @ (weight * here) + (vector - prior) / sigma**2
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
        trial = vector + np.clip(step, -0.5, 0.5)
        new = cost(trial)
        if new < best:
            done = best - new < 1e-8 * best
            vector, best, damping = trial, new, max(1e-6, damping / 3)
            if done:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    fitted = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(vector).tolist())}
    return WithinNodeTiming(**{**fixed, **fitted})


def row_of_inside(cluster: ClusterSpec, planner: Planner, m: Measurement) -> Row | None:
    """A measurement's row where a time inside a node predicts it, else None."""
    group = planner.group(operation_of(m).ranks or (0, m.ranks - 1))
    if group.shape.nodes > 1 or not cluster.nccl.within_node:
        return None
    row = row_of(cluster, planner, m)
    return replace(row, floor_us=floor_us(m, LAUNCH_US)) if row.key in cluster.nccl.within_node else None


def fit_set(
    rows: Sequence[Row], *, start: Mapping[str, WithinNodeTiming] | None = None
) -> dict[str, WithinNodeTiming]:
    """Fit every key that a set's rows use; the ring's tail is that of its Simple protocol throughout."""
    keys = sorted({r.key for r in rows}, key=lambda key: (family_of(key) != "simple", key))
    result: dict[str, WithinNodeTiming] = {}
    for key in keys:
        family = family_of(key)
        prior = (start or {}).get(key, START[family])
        if key.startswith("ring") and "ring_simple" in result:
            prior = replace(prior, tail=result["ring_simple"].tail)
        result[key] = fit_key([r for r in rows if r.key == key], prior, WIDTHS[family])
    return result


def predict_rows(rows: Sequence[Row], timing: Mapping[str, WithinNodeTiming]) -> Floats:
    """Times of rows; NaN for a key that `timing` lacks."""
    result = np.full(len(rows), np.nan)
    for key in {r.key for r in rows} & set(timing):
        own = [i for i, r in enumerate(rows) if r.key == key]
        result[own] = _Arrays([rows[i] for i in own]).predict(asdict(timing[key]))
    return result


def held_out_errors(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Signed errors of each row when its configuration's fold was left out of the fit."""
    result: list[tuple[Row, float]] = []
    for fold in range(FOLDS):
        own = [r for r in rows if fold_of(r.measurement) == fold]
        others = [r for r in rows if fold_of(r.measurement) != fold]
        if own and others:
            found = predict_rows(own, fit_set(others))
            result += [
                (r, float(t / r.measurement.time_us - 1)) for r, t in zip(own, found) if not math.isnan(t)
            ]
    return result


def timing_line(key: str, timing: WithinNodeTiming) -> str:
    """Line of a cluster file's [nccl.within_node] table."""
    values = ", ".join(f"{field} = {value:g}" for field, value in asdict(timing).items())
    return f"{key} = {{ {values} }}"


def toml_of_sets(sets: Mapping[str, Mapping[str, WithinNodeTiming]], counts: Mapping[str, int]) -> str:
    """Content of `data/within_node.toml`."""
    lines = [
        "# Made by `python -m netsim.calibrate.within_node`; do not edit. Times inside a node, fitted to",
        "# data/nccl_within_node.csv.gz (ai-dynamo/aiconfigurator, commit 095f58a51c4c).",
    ]
    for name, keys in sorted(sets.items()):
        lines += ["", f"[{name}]  # {counts[name]} rows"]
        for key, timing in sorted(keys.items()):
            lines.append(timing_line(key, timing))
    return "\n".join(lines) + "\n"


def _messages_like(exchange: WithinNodeTiming, measured: Mapping[str, WithinNodeTiming]) -> WithinNodeTiming:
    """Messages where only all_to_all was measured: they differ from it as they do in the set `measured`."""
    ratio = exchange.base_us / measured["all_to_all"].base_us
    known = measured["send_recv"]
    return replace(
        known,
        base_us=float(f"{known.base_us * ratio:.4g}"),
        fill_us=float(f"{known.fill_us * ratio:.4g}"),
        efficiency=exchange.efficiency,
    )


def main() -> None:
    """Fit all sets and write them."""
    from netsim.cluster.within_node import WITHIN_NODE_FILE

    rows = rows_by_set(fitted_measurements())
    sets = {name: fit_set(own) for name, own in rows.items()}
    for timing in sets.values():
        if "send_recv" not in timing:
            timing["send_recv"] = _messages_like(timing["all_to_all"], sets["hopper-nvlink"])
    WITHIN_NODE_FILE.write_text(
        toml_of_sets(sets, {n: len(own) for n, own in rows.items()}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
