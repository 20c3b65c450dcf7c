"""Without Triton the error says what to type."""

from __future__ import annotations

import sys

import pytest
import torch

from .attached import attach

attach()


def test_the_error_names_the_package_and_the_interpreter() -> None:
    sys.modules["triton"] = None  # type: ignore[assignment]  # as if it were not installed
    with pytest.raises(Exception, match=r"pip install triton==") as raised:
        torch.compile(lambda t: t.sin() + 1)(torch.ones(8, device="cuda"))
    assert sys.executable in str(raised.value)
