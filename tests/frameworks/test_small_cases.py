"""A small case of each framework; the whole matrix is `make frameworks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpose import build

from .case import Case
from .collect import collect_cases
from .outcome import installed, run_case

SMALL = [case for case in collect_cases() if case.small]


@pytest.mark.skipif(not build.is_current(), reason="extension not built: python -m interpose.build")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SMALL])
def test_small_case(case: Case, tmp_path: Path) -> None:
    if installed(case.version) == "-":
        pytest.skip(f"{case.version} is not installed (extra `frameworks`)")
    outcome = run_case(case, tmp_path / case.name)
    assert outcome.status == ("refused" if case.refused is not None else "ok"), outcome.output
