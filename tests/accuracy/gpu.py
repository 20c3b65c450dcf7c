"""The same jobs on the GPU of this machine, for real and simulated: `python -m tests.accuracy.gpu`.

`make gpu-check`. Kernels are measured on that GPU, the host's time on this host. Without a CUDA GPU it says
so and ends with status 2.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from netsim.cluster import gpu_preset, gpu_presets

from .cpu import JOBS, CpuJob, Result, Runner

_PROBE = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"


def gpu_name() -> str | None:
    """The first CUDA GPU here, by the name that CUDA gives it; None without one."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    return done.stdout.strip() or None if done.returncode == 0 else None


def preset_of(name: str) -> str | None:
    """The GPU preset that describes a GPU of that CUDA name; None for one that no preset describes."""
    from phantom.kernels import UnknownGpuError, gpu_by_name

    def same(one: str, other: str) -> bool:
        try:
            return one == other or gpu_by_name(one).name == gpu_by_name(other).name
        except UnknownGpuError:
            return False

    return next((preset for preset in gpu_presets() if same(gpu_preset(preset).name, name)), None)


def check(jobs: Sequence[CpuJob], *, preset: str, rounds: int) -> list[Result]:
    """Runs the jobs in turn for real and simulated on a cluster of one such GPU."""
    results = [Result(job) for job in jobs]
    with tempfile.TemporaryDirectory(prefix="phantom-gpu-check-") as folder:
        runner = Runner(Path(folder))
        cluster = Path(folder, "gpu.toml")
        cluster.write_text(f'name = "this-gpu"\n[gpu]\npreset = "{preset}"\n[node]\ngpus = 1\n')
        for number in range(rounds):
            for result in results:
                result.real_s.append(runner.real(result.job, device="cuda"))
                store = Path(folder, f"kernels-{number}.sqlite")
                virtual_s, share, _ = runner.simulated(result.job, cluster=cluster, store=store)
                result.virtual_s.append(virtual_s)
                result.measured_share = share
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints virtual, real, error; status 1 past --tolerance, 2 without a GPU to check against."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.gpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=0.15, help="largest relative error of a job")
    given = parser.parse_args(arguments)
    name = gpu_name()
    if name is None:
        print(
            "gpu-check: no CUDA GPU is here (or this torch has no CUDA); run it where there is one",
            file=sys.stderr,
        )
        return 2
    preset = preset_of(name)
    if preset is None:
        print(f"gpu-check: no preset describes {name!r}; known: {', '.join(gpu_presets())}", file=sys.stderr)
        return 2
    results = check([job for job in JOBS if job.ranks == 1], preset=preset, rounds=given.rounds)
    print(
        f"{name}, {given.rounds} rounds\n"
        f"{'job':<24}{'virtual':>12}{'real':>12}{'error':>9}{'spread':>9}{'measured':>10}"
    )
    for r in results:
        print(
            f"{r.job.name:<24}{r.virtual * 1e3:>9.2f} ms{r.real * 1e3:>9.2f} ms"
            f"{r.error:>+9.1%}{r.spread:>9.1%}{r.measured_share:>10.0%}"
        )
    return 0 if all(r.within(given.tolerance) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
