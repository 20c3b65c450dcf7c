"""Prints every accuracy table: `python -m tests.accuracy` (`make accuracy`)."""

from __future__ import annotations

import netsim.accuracy
import phantom.kernels.accuracy


def main() -> None:
    """Compute and print the tables of the network and of the kernels."""
    print(netsim.accuracy.report(), flush=True)
    print()
    print(phantom.kernels.accuracy.page())


if __name__ == "__main__":
    main()
