"""A part of the OpInfo database that fits in the ordinary run; docs/opinfo.md has the whole."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from .attached import configure
from .opinfo_judge import DATA_DEPENDENT, chosen, judge


@pytest.mark.parametrize("values", [False, True])
def test_every_eighth_operator_agrees_with_the_cpu(extension: ModuleType, values: bool) -> None:
    configure(values=values)
    verdicts = []
    for op in chosen(torch.float32, every=8, offset=3):
        if values or op.name not in DATA_DEPENDENT:
            verdicts += judge(op, torch.float32, limit=6)
    judged = [v for v in verdicts if v.kind != "skipped"]
    wrong = [v for v in judged if v.kind not in ("same", "cuda")]
    assert len(judged) > 300
    assert len(wrong) <= 0.005 * len(judged), "\n".join(map(str, wrong))
