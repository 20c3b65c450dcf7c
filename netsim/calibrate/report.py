"""`phantom cluster calibrate`: fits a cluster to nccl-tests logs and says how well, per size and
cross-validated.

python -m netsim.calibrate.report --base h100-dgx --nccl-log FILE... [--out mine.toml]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from netsim.calibrate.fit import Fit, errors, fit, toml_of
from netsim.calibrate.measurements import Measurement, parse_nccl_tests
from netsim.cluster import load_cluster
from netsim.cluster.spec import ClusterSpec
from netsim.errors import ClusterError, NetsimError

FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """A fit with its errors: on the rows themselves and on each row when its fold was left out."""

    fit: Fit
    measurements: tuple[Measurement, ...]
    before: tuple[float, ...]
    fitted: tuple[float, ...]
    held_out: tuple[float, ...]

    def table(self) -> str:
        """Errors per row and in summary."""
        lines = [
            f"{'kind':<15} {'ranks':>6} {'bytes':>12} {'measured us':>12} "
            f"{'before':>8} {'fitted':>8} {'held out':>9}"
        ]
        for m, before, fitted, held in zip(self.measurements, self.before, self.fitted, self.held_out):
            lines.append(
                f"{m.kind:<15} {m.ranks:6d} {m.size_bytes:12d} {m.time_us:12.1f} "
                f"{before:+8.1%} {fitted:+8.1%} {held:+9.1%}"
            )
        for name, values in (("before", self.before), ("fitted", self.fitted), ("held out", self.held_out)):
            size = np.abs(values)
            lines.append(
                f"{name:<9} median {np.median(size):.1%}, 90th percentile {np.quantile(size, 0.9):.1%}, "
                f"worst {size.max():.1%}"
            )
        return "\n".join(lines)


def calibrate(cluster: ClusterSpec, measurements: Sequence[Measurement]) -> Calibration:
    """Fit `cluster` to measurements; every row's held-out error comes from a fit without its fifth of the
    rows.

    Raises `ClusterError` where there are too few rows, or a world size that the cluster cannot have.
    """
    rows = sorted(measurements, key=lambda m: (m.kind, m.ranks, m.size_bytes, m.time_us))
    if len(rows) < 2 * FOLDS:
        raise ClusterError(f"calibration needs at least {2 * FOLDS} measurements, got {len(rows)}")
    prior = dict(cluster.nccl.timing)
    result = fit(cluster, rows, prior=prior)
    held = np.zeros(len(rows))
    for fold in range(FOLDS):
        part = fit(cluster, [m for i, m in enumerate(rows) if i % FOLDS != fold], prior=prior)
        own = [i for i in range(len(rows)) if i % FOLDS == fold]
        held[own] = errors(part.cluster, [rows[i] for i in own], launch_us=part.launch_us)
    return Calibration(
        result,
        tuple(rows),
        tuple(errors(cluster, rows).tolist()),
        tuple(errors(result.cluster, rows, launch_us=result.launch_us).tolist()),
        tuple(held.tolist()),
    )


def calibrate_files(
    base: str, files: Sequence[str], *, kind: str = "", nodes: int = 0, ranks: int = 0
) -> Calibration:
    """Fit the cluster `base` (a preset or file) to nccl-tests logs.

    `kind`, `nodes` and `ranks` supply what the logs do not tell. Raises `ClusterError` naming the file and
    what is missing.
    """
    rows: list[Measurement] = []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ClusterError(f"{file}: cannot be read: {error.strerror}") from None
        rows += parse_nccl_tests(text, file=file, kind=kind, nodes=nodes, ranks=ranks)
    return calibrate(load_cluster(base), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if it went well, 2 for wrong input."""
    parser = argparse.ArgumentParser(
        prog="python -m netsim.calibrate.report", description="Fit a cluster to logs."
    )
    parser.add_argument("--base", required=True, help="preset or cluster file to start from")
    parser.add_argument(
        "--nccl-log", nargs="+", required=True, metavar="FILE", help="standard output of nccl-tests"
    )
    parser.add_argument("--kind", default="", help="collective, where the log does not tell")
    parser.add_argument("--nodes", type=int, default=0, help="servers, where the log does not tell")
    parser.add_argument("--ranks", type=int, default=0, help="GPUs, where the log does not tell")
    parser.add_argument("--name", default="calibrated", help="name of the new cluster")
    parser.add_argument("--out", help="write the cluster file here instead of printing it")
    options = parser.parse_args(arguments)
    try:
        found = calibrate_files(
            options.base, options.nccl_log, kind=options.kind, nodes=options.nodes, ranks=options.ranks
        )
    except NetsimError as error:
        print(error, file=sys.stderr)
        return 2
    print(found.table())
    toml = toml_of(found.fit, name=options.name, base=options.base)
    if options.out:
        Path(options.out).write_text(toml, encoding="utf-8")
    else:
        print("\n" + toml, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
