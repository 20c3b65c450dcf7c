"""Runs rows as real simulated jobs (`phantom run` of `gpt_job`) and keeps the results in a JSON file.

A result belongs to a row and to a *version*: a hash of the prices, cluster, job and command line that it was
made with.
`python -m tests.accuracy.runs` resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from netsim.cluster import load_cluster
from netsim.cluster.sections import HOST_DEFAULTS_S
from phantom.kernels.calibrate.gpt_step import GptShape, attention_kernels, block_kernels, head_kernels
from phantom.kernels.predict.constants import constants_for
from phantom.kernels.predict.predictor import Predictor
from phantom.serve.config import kernel_gpu
from tests.accuracy.rows import HERE, Row, rows

ROOT = HERE.parent.parent
RESULTS = HERE / "data" / "training_results.json"
_DEPENDS = ("netsim/data/gpus.toml", "netsim/presets/*.toml", "tests/accuracy/gpt_job/*.py")
_PROBE = GptShape(layers=1, hidden=2048, heads=16, vocabulary=50304, batch=4, length=1024)
_FULL_PIPELINE = 32


@cache
def _common() -> bytes:
    """Return a hash of what every row depends on: host times, presets, GPUs, the job."""
    digest = hashlib.sha256(json.dumps(HOST_DEFAULTS_S, sort_keys=True).encode())
    for pattern in _DEPENDS:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.digest()


@cache
def _prices(cluster: str) -> str:
    """Return the constants of the cluster's GPU and what they and the rules make of the kernels of a GPT.

    A rule that is written anew without a change of its prices leaves the results valid.
    """
    spec = kernel_gpu(load_cluster(cluster))
    constants = constants_for(spec.architecture)
    forward, backward = block_kernels(_PROBE)
    kernels = [*forward, *backward, *attention_kernels(_PROBE), *head_kernels(_PROBE)]
    predictor = Predictor(spec, constants=constants)
    found = [predictor.estimate(kernel) for kernel in kernels]
    seconds = [f"{estimate.seconds:.6e}" if estimate is not None else "unpriced" for estimate in found]
    groups = {name: dict(values) for name, values in constants.groups.items()}
    return json.dumps([repr(spec), groups, seconds], sort_keys=True)


def version(row: Row) -> str:
    """Return a hash of all that decides the row's simulated step time (12 hexadecimal digits)."""
    digest = hashlib.sha256(_common() + _prices(row.cluster).encode())
    cluster = Path(row.cluster)
    if cluster.suffix == ".toml":
        digest.update(cluster.read_bytes())
    words = command(row, Path("out"))
    # Without the interpreter and the place of the checkout, which differ between machines.
    digest.update("\n".join(words[1:]).replace(str(ROOT), "").encode())
    return digest.hexdigest()[:12]


def schedule(row: Row) -> list[int]:
    """Return the micro-batches of each simulated step: the first step warms up.

    Without a pipeline every micro-batch after the first takes the same time, so with more than three the step
    is that of two plus the rest times the difference between three and two.  A pipeline is simulated in full
    up to 32 micro-batches; beyond, from twice and three times its depth on, where its schedule is periodic.
    """
    count = row.micro_batches
    if row.pipeline == 1:
        return [2, 2, 3] if count > 3 else [count, count]
    if count <= max(_FULL_PIPELINE, 3 * row.pipeline):
        return [count, count]
    return [row.pipeline, 2 * row.pipeline, 3 * row.pipeline]


def step_s(row: Row, simulated: list[float]) -> float:
    """Return the step time of *row* from those of its simulated steps (or its time per micro-batch)."""
    counts = schedule(row)
    if len(counts) == 2:
        return simulated[1]
    each = (simulated[2] - simulated[1]) / (counts[2] - counts[1])
    return each if row.per_micro_batch else simulated[1] + (row.micro_batches - counts[1]) * each


def command(row: Row, out: Path) -> list[str]:
    """Return the command line that simulates *row*."""
    counts = schedule(row)
    values = {
        "layers": row.layers,
        "hidden": row.hidden,
        "heads": row.heads,
        "kv-heads": row.kv_heads,
        "ffn": row.ffn,
        "vocabulary": row.vocabulary,
        "length": row.length,
        "micro-batch": row.micro_batch,
        "style": row.style,
        "dtype": row.dtype,
        "recompute": row.recompute,
        "parallel": row.parallel,
        "tensor": row.tensor,
        "pipeline": row.pipeline,
        "steps": len(counts),
    }
    job = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return [
        sys.executable,
        "-m",
        "phantom.cli.main",
        "run",
        "-q",
        "--cluster",
        row.cluster,
        "-N",
        str(row.nodes),
        "-G",
        str(row.gpus_per_node),
        "--kernels",
        "predict",
        "--timeline-ranks",
        "0",
        "--out",
        str(out),
        str(HERE / "gpt_job" / "train.py"),
        *job,
        "--micro-batches",
        *map(str, counts),
        *row.options,
    ]


def simulate(row: Row, *, timeout_s: float) -> dict[str, Any]:
    """Run *row* and return its result: step time and where it went, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="phantom-row-") as folder:
        out = Path(folder) / "run"
        began = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            ended = subprocess.run(
                command(row, out),
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return {"status": f"not ended after {timeout_s:.0f} s"}
        if not (out / "summary.json").exists():
            return {"status": "no summary", "output": (ended.stdout + ended.stderr)[-2000:]}
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        wall_s = time.monotonic() - began
        if summary["status"] != "ok" or ended.returncode:
            return {
                "status": summary["status"],
                "output": (ended.stdout + ended.stderr)[-2000:],
                "wall_s": wall_s,
            }
        return _result(row, summary, wall_s)


def _result(row: Row, summary: dict[str, Any], wall_s: float) -> dict[str, Any]:
    simulated = [step["virtual_s"] for step in summary["steps"]]
    first = summary["ranks"][0]
    parts = {name: first[f"{name}_s"] for name in ("compute", "exposed_communication", "idle")}
    total = sum(parts.values()) or 1.0
    return {
        "status": "ok",
        "step_s": step_s(row, simulated),
        "simulated_s": simulated,
        "shares": {name: value / total for name, value in parts.items()},
        "peak_allocated_bytes": max(rank["peak_allocated_bytes"] for rank in summary["ranks"]),
        "classes": {entry["class"]: entry["virtual_s"] for entry in summary["kernels"]},
        "unpriced": summary["coverage"]["unpriced"],
        "wall_s": round(wall_s, 1),
    }


def load() -> dict[str, Any]:
    """Return the kept results: row id to result, each with its version."""
    if not RESULTS.exists():
        return {}
    data: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return data


def save(results: dict[str, Any]) -> None:
    """Write *results* in one piece, sorted."""
    text = json.dumps(dict(sorted(results.items())), indent=1, sort_keys=True) + "\n"
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(RESULTS)


def keep(identity: str, result: dict[str, Any]) -> None:
    """Add one result to the file; several processes may do so at once."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save({**load(), identity: result})


def run(
    wanted: Iterable[Row], *, limit_s: float, timeout_s: float, again: bool = False, jobs: int = 1
) -> None:
    """Simulate those of *wanted* that have no result of this version, cheapest first, *jobs* at a time.

    No row is begun after *limit_s*.
    """
    began = time.monotonic()

    def one(row: Row) -> bool:
        known = load().get(row.id)
        if known and not again and known["version"] == version(row):
            return True
        if time.monotonic() - began > limit_s:
            return False
        result = {**simulate(row, timeout_s=timeout_s), "version": version(row)}
        keep(row.id, result)
        error = f"{result['step_s'] / row.step_s - 1:+.1%}" if result["status"] == "ok" else result["status"]
        print(f"{row.id} {row.source} {row.ranks} ranks: {error} ({result.get('wall_s')} s real)", flush=True)
        return True

    ordered = sorted(wanted, key=lambda r: (r.ranks, r.layers * sum(schedule(r))))
    with ThreadPoolExecutor(jobs) as pool:
        if not all(pool.map(one, ordered)):
            print("out of time; run again to go on")


def main() -> None:
    """Run rows from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="rows; default: all of the filter")
    parser.add_argument("--source", default="", help="only sources that begin so")
    parser.add_argument("--fitted", action="store_true", help="only the fitting third")
    parser.add_argument("--ranks", type=int, default=10**6, help="at most so many ranks")
    parser.add_argument("--min-ranks", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no row is begun")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per row")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--again", action="store_true", help="also rows that have a result of this version")
    arguments = parser.parse_args()
    wanted = [
        row
        for row in rows()
        if (not arguments.ids or row.id in arguments.ids)
        and row.source.startswith(arguments.source)
        and (row.fitted or not arguments.fitted)
        and arguments.min_ranks <= row.ranks <= arguments.ranks
    ]
    run(
        wanted,
        limit_s=arguments.limit,
        timeout_s=arguments.timeout,
        again=arguments.again,
        jobs=arguments.jobs,
    )


if __name__ == "__main__":
    main()
