"""Measuring on the CPU: real runs in a process of their own, valid inputs, once per key."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from record import Recorder

from phantom.kernels import CostModel, KernelDescription, cost_key
from phantom.kernels.measure.call_timing import cpu_cache_bytes
from phantom.kernels.measure.cpu_form import cpu_form
from phantom.kernels.measure.kernel_store import KernelStore
from phantom.kernels.measure.local_device import local_cpu, shared_cpu_name
from phantom.kernels.measure.measurer import MeasurementFailed, Measurer, _Worker
from phantom.kernels.request.description import IntList, Opaque, contiguous, encode_kernel


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(local_cpu(), budget_s=0.02, limit_bytes=1 << 30) as found:
        yield found


def _seconds(measurer: Measurer, kernel: KernelDescription) -> float:
    with measurer.exclusive():
        return measurer.measure(kernel, cost_key(kernel)).median_s


def _neg(count: int, dtype: str = "float32") -> KernelDescription:
    x = contiguous(dtype, count)
    return KernelDescription("aten::neg", (x,), (x,))


def test_more_work_takes_longer(measurer: Measurer) -> None:
    def mm(n: int) -> KernelDescription:
        x = contiguous("float32", n, n)
        return KernelDescription("aten::mm", (x, x), (x,))

    assert _seconds(measurer, mm(512)) > 3 * _seconds(measurer, mm(128))


def test_indices_masks_probabilities_and_factors_are_valid(measurer: Measurer) -> None:
    import torch

    x = torch.rand(32, 16)
    index = torch.randint(0, 16, (32, 4))
    with Recorder() as recorder:
        x[torch.tensor([1, 2, 3])]
        x.gather(1, index)
        x.scatter(1, index, 1.0)
        x.index_select(1, torch.tensor([1, 5]))
        x.index_add(0, torch.tensor([1, 5]), torch.rand(2, 16))
        torch.nn.functional.embedding(torch.tensor([1, 31]), x)
        torch.nn.functional.cross_entropy(x, torch.randint(0, 16, (32,)))
        torch.nn.functional.binary_cross_entropy(x, x)
        torch.bernoulli(x)
        torch.multinomial(x, 3)
        torch.linalg.cholesky_ex(x.T @ x + torch.eye(16))
        torch.linalg.inv(x.T @ x + torch.eye(16))
        x.long() // 3
        torch.bucketize(x, torch.linspace(0, 1, 8))
        torch.nn.functional.max_pool2d(x.view(1, 1, 32, 16), 2)
    failures = {}
    for key, kernel in {cost_key(k): k for k in recorder.kernels}.items():
        try:
            assert _seconds(measurer, kernel) > 0
        except MeasurementFailed as error:
            failures[key] = str(error)
    assert failures == {}


def test_a_training_step_can_be_measured_whole(measurer: Measurer) -> None:
    import torch

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with Recorder() as recorder:
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.randint(0, 8, (4,)))
        loss.backward()
        optimizer.step()
    known = {cost_key(kernel): kernel for kernel in recorder.kernels if kernel.namespace == "aten"}
    model_of = CostModel("cpu", mode="predict")
    for key, kernel in known.items():
        if model_of.cost(kernel).source != "none":
            assert _seconds(measurer, kernel) > 0, key


def test_flash_attention_runs_in_its_cpu_form(measurer: Measurer) -> None:
    q = contiguous("float32", 1, 2, 32, 16)
    sums = contiguous("float32", 1, 2, 32)
    forward = KernelDescription(
        "aten::_scaled_dot_product_flash_attention", (q, q, q, 0.0, True, False, None), (q, sums)
    )
    assert cpu_form(forward).name == "_scaled_dot_product_flash_attention_for_cpu"
    assert _seconds(measurer, forward) > 0
    small = contiguous("int64")
    backward = KernelDescription(
        "aten::_scaled_dot_product_flash_attention_backward",
        (q, q, q, q, q, sums, None, None, 32, 32, 0.0, True, small, small, None), (q, q, q),
    )  # fmt: skip
    assert _seconds(measurer, backward) > 0


def test_cudnn_convolution_runs_in_its_cpu_form(measurer: Measurer) -> None:
    x, w = contiguous("float32", 1, 3, 8, 8), contiguous("float32", 4, 3, 3, 3)
    one, zero = IntList((1, 1)), IntList((0, 0))
    args = (x, w, zero, one, one, 1, False, False, True)
    kernel = KernelDescription("aten::cudnn_convolution", args, (contiguous("float32", 1, 4, 6, 6),))
    assert _seconds(measurer, kernel) > 0


def test_a_mask_that_was_not_sent_is_made_from_the_outputs(measurer: Measurer) -> None:
    x, w = contiguous("float32", 2, 4, 8, 8), contiguous("float32", 4, 4, 3, 3)
    one = IntList((1, 1))
    args = (x, x, w, IntList((4,)), one, one, one, False, IntList((0, 0)), 1, Opaque("BoolList"))
    assert _seconds(measurer, KernelDescription("aten::convolution_backward", args, (x, w, None))) > 0


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (KernelDescription("aten::no_such_operator", (contiguous("float32", 1),)), "no operator"),
        (KernelDescription("mine::op", (contiguous("float32", 1),)), "no operator"),
        (_neg(1 << 40), "GiB"),
        (
            KernelDescription("aten::mm", (contiguous("float32", 2, 3), contiguous("float32", 5, 7))),
            "mat1 and mat2",
        ),
    ],
)
def test_what_cannot_run_says_why_and_the_process_lives_on(
    measurer: Measurer, kernel: KernelDescription, reason: str
) -> None:
    with pytest.raises(MeasurementFailed, match=reason):
        _seconds(measurer, kernel)
    assert _seconds(measurer, _neg(16)) > 0


def test_a_hanging_kernel_is_given_up() -> None:
    x = contiguous("float32", 1500, 1500)
    with Measurer(local_cpu(), timeout_s=0.2, budget_s=30.0) as impatient:
        impatient._ready()
        with pytest.raises(MeasurementFailed, match="longer than"), impatient.exclusive():
            impatient.measure(KernelDescription("aten::mm", (x, x), (x,)), "slow")


def test_a_model_measures_once_and_stores(tmp_path: Path) -> None:
    path = tmp_path / "kernels.sqlite"
    model = CostModel("cpu", store=path)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(model.cost(_neg(4096)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.close()
    assert {answer.source for answer in answers} == {"measured"}
    assert len({answer.duration_ps for answer in answers}) == 1
    rows = KernelStore(path).measurements()
    assert [row.key for row in rows] == [cost_key(_neg(4096))]
    again = CostModel("cpu", store=path, mode="store")
    assert again.cost(_neg(4096)) == answers[0]
    assert again.cost(_neg(77)).source == "unpriced"


def test_ranks_that_share_the_cpu_are_measured_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    path = tmp_path / "kernels.sqlite"
    model = CostModel("cpu", store=path, mode="measure")
    for ranks in (1, 2, 8):  # more ranks than cores share the cores
        model.begin_job(ranks_per_server=ranks)
        assert model.cost(_neg(1 << 20)).source == "measured"
    model.close()
    assert [row.device for row in KernelStore(path).measurements()] == [
        shared_cpu_name(1), shared_cpu_name(2),
    ]  # fmt: skip
    assert shared_cpu_name(2) == shared_cpu_name(1) + ", 2 processes"


def test_what_runs_beside_a_measurement_really_runs_until_it_is_stopped() -> None:
    request = {"kernel": encode_kernel(_neg(1 << 20)), "device": "cpu", "beside": True}
    worker = _Worker(1)
    try:
        assert worker.ask(request, 60.0)["ok"]
        busy_s = [_cpu_s(worker._process.pid)]
        time.sleep(0.5)
        busy_s.append(_cpu_s(worker._process.pid))
        assert worker.ask({"stop": True}, 60.0)["ok"]
        assert busy_s[1] > busy_s[0]
        # A kernel that a core keeps in its own cache only waits.
        assert worker.ask({**request, "kernel": encode_kernel(_neg(64))}, 60.0)["ok"]
        assert worker.ask({"stop": True}, 60.0)["ok"]
        assert not worker.ask({**request, "kernel": encode_kernel(_neg(1 << 45))}, 60.0)["ok"]
    finally:
        worker.close()
    assert worker.ask(request, 60.0) == {"ok": False, "reason": "the measuring process ended"}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_failure_beside_a_measurement_is_its_failure() -> None:
    with Measurer(replace(local_cpu(), processes=2)) as measurer, measurer.exclusive():
        with pytest.raises(MeasurementFailed, match="no operator"):
            measurer.measure(KernelDescription("aten::no_such_operator", (contiguous("float32", 1),)), "bad")
        assert measurer.measure(_neg(1 << 20), "good").median_s > 0


@pytest.mark.parametrize(
    ("sizes", "found"), [(("32K", "512K", "16384K"), 16 << 20), (("2M", "1G"), 128 << 20), ((), 32 << 20)]
)
def test_the_last_level_cache_is_the_largest(tmp_path: Path, sizes: tuple[str, ...], found: int) -> None:
    for index, size in enumerate(sizes):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert cpu_cache_bytes(tmp_path) == found


def test_what_cannot_be_measured_is_predicted_with_the_reason(tmp_path: Path) -> None:
    model = CostModel("cpu", store=tmp_path / "kernels.sqlite", mode="measure")
    x = contiguous("float32", 64)
    kernel = KernelDescription("aten::brand_new_thing", (x,), (x,))
    assert model.cost(kernel).source == "predicted"
    assert "no operator" in model.failures[cost_key(kernel)]
    model.close()


def test_a_gpu_that_is_not_here_is_predicted(tmp_path: Path) -> None:
    model = CostModel("h100-sxm", store=tmp_path / "kernels.sqlite")
    assert model.cost(_neg(4096)).source == "predicted"
    assert not (tmp_path / "kernels.sqlite").exists()
