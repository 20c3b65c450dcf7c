"""Starts a real Gloo sweep on this machine and fits latency and rate of each kind of operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from phantom.launch.ports import free_ports

SIZES = (4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20)
"""Bytes; from where latency is all to where it is nothing."""
SLICES_S = 0.010
"""Waiting for a core within a job is a time slice or two of Linux (3 to 4 ms each); a call that takes longer
than that was disturbed from outside."""
REPETITIONS = 40
TIMEOUT_S = 180.0


class SweepFailed(RuntimeError):
    """The sweep could not be run; the text holds what its ranks printed."""


@dataclass(frozen=True, kw_only=True)
class GlooFit:
    """Seconds of one kind = latency_s + bytes / rate_bytes_per_s, both for `world_size` ranks of one machine.

    `error`: median relative distance of the fit from the measured sizes.
    """

    kind: str
    latency_s: float
    rate_bytes_per_s: float
    error: float


def run_sweep(
    *,
    ranks: int = 2,
    sizes: Sequence[int] = SIZES,
    repetitions: int = REPETITIONS,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Runs a sweep with one thread per rank: {"world_size", "rows": [{"kind", "bytes", "samples_s"}]}.

    Raises SweepFailed.
    """
    (port,) = free_ports(1)
    request = json.dumps({"sizes": list(sizes), "repetitions": repetitions})
    root = str(Path(__file__).resolve().parents[2])
    base = {name: value for name, value in os.environ.items() if not name.startswith("PHANTOM")}
    base["PYTHONPATH"] = os.pathsep.join(filter(None, [root, base.get("PYTHONPATH")]))
    base.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "phantom.localcpu.sweep", request],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
    except subprocess.TimeoutExpired:
        raise SweepFailed(f"the Gloo sweep of {ranks} ranks took longer than {timeout_s:.0f} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for rank, (process, (_, errors)) in enumerate(zip(processes, outputs)):
        if process.returncode != 0:
            raise SweepFailed(f"rank {rank} of the Gloo sweep failed:\n{errors.strip()[-1500:]}")
    found: dict[str, Any] = json.loads(outputs[0][0].strip().splitlines()[-1])
    return found


def fit_sweep(sweep: Mapping[str, Any]) -> dict[str, GlooFit]:
    """Fits every kind by least squares of relative errors; a size counts with the mean of its calls.

    The mean and not the median: a step has many calls, and their times add up. With as many ranks as cores
    every third or so takes 4 ms longer, since one of Gloo's threads waits for a core that a rank computes on.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for row in sweep["rows"]:
        limit_s = 5 * median(row["samples_s"]) + SLICES_S
        points.setdefault(row["kind"], []).append(
            (float(row["bytes"]), fmean(sample for sample in row["samples_s"] if sample <= limit_s))
        )
    return {kind: _fit(kind, rows) for kind, rows in points.items()}


def _fit(kind: str, rows: list[tuple[float, float]]) -> GlooFit:
    """Minimises sum((a + b x - t)^2 / t^2); neither may be negative."""
    weights = [1 / t**2 for _, t in rows]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, rows)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, rows)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, rows))
    slope = (
        sum(w * (x - mean_x) * (t - mean_t) for w, (x, t) in zip(weights, rows)) / spread if spread else 0.0
    )
    slope = max(slope, 1e-13)  # no faster than 10 TB/s
    latency_s = max(mean_t - slope * mean_x, 1e-7)
    errors = sorted(abs(latency_s + slope * x - t) / t for x, t in rows)
    return GlooFit(kind=kind, latency_s=latency_s, rate_bytes_per_s=1 / slope, error=errors[len(errors) // 2])
