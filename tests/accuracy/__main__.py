"""Prints every accuracy table: `python -m tests.accuracy` (`make accuracy`).

`--full` simulates the published training steps anew (hours); without it the kept results are taken.
The jobs on this machine's CPU are run for real and simulated (ten minutes) and write
docs/accuracy-cpu.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import netsim.accuracy
import phantom.kernels.accuracy.page
import tests.accuracy.compiled_block
import tests.accuracy.cpu
import tests.accuracy.runs
import tests.accuracy.table

CPU_PAGE = Path("docs/accuracy-cpu.md")


def main() -> int:
    """Compute and print the tables of the network, the kernels, whole training steps and jobs on this CPU.

    Status 1 where those are past their limits.
    """
    print(netsim.accuracy.report(), flush=True)
    print()
    print(phantom.kernels.accuracy.page.page(), flush=True)
    print()
    if "--full" in sys.argv[1:]:
        tests.accuracy.runs.run(tests.accuracy.rows.rows(), limit_s=float("inf"), timeout_s=1800.0)
    tests.accuracy.table.main()
    print(flush=True)
    tests.accuracy.compiled_block.main()
    print(flush=True)
    return tests.accuracy.cpu.main(["--out", str(CPU_PAGE)])


if __name__ == "__main__":
    sys.exit(main())
