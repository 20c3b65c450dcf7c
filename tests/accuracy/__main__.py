"""Prints every accuracy table: `python -m tests.accuracy` (`make accuracy`).

`--full` simulates the published training steps anew (hours); without it the kept results are taken.
"""

from __future__ import annotations

import sys

import netsim.accuracy
import phantom.kernels.accuracy
import tests.accuracy.runs
import tests.accuracy.table


def main() -> None:
    """Compute and print the tables of the network, of the kernels and of whole training steps."""
    print(netsim.accuracy.report(), flush=True)
    print()
    print(phantom.kernels.accuracy.page(), flush=True)
    print()
    if "--full" in sys.argv[1:]:
        tests.accuracy.runs.run(tests.accuracy.rows.rows(), limit_s=float("inf"), timeout_s=1800.0)
    tests.accuracy.table.main()


if __name__ == "__main__":
    main()
