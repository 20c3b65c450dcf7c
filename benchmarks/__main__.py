"""Runs every benchmark of this folder, each as its own process: `python -m benchmarks`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Runs all benchmark modules and returns the number that failed."""
    here = Path(__file__).parent
    failed = 0
    for path in sorted(here.rglob("*.py")):
        if path.name.startswith("_"):
            continue
        module = ".".join(("benchmarks", *path.relative_to(here).with_suffix("").parts))
        print(f"\n== {module}", flush=True)
        failed += subprocess.run([sys.executable, "-m", module], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
