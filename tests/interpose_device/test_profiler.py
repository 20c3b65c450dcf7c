"""torch.profiler with CUDA activities: device times are virtual, and nothing is printed per operator."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

MS = 1_980_000  # cycles of one millisecond


def test_device_time_of_a_range_is_virtual(device: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as profiler, record_function("work"):
        torch.cuda._sleep(7 * MS)
    (work,) = [event for event in profiler.key_averages() if event.key == "work"]
    assert work.device_time_total == pytest.approx(7_000, rel=0.01)
    assert "Failed to record CUDA event" not in capfd.readouterr().err
