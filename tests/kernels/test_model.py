"""The cost model's interface."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from phantom.kernels import CostModel, KernelDescription, KernelFormatError
from phantom.kernels.predict.operator_classes import CLASSES
from phantom.kernels.request.description import TensorList, contiguous, encode_kernel, transposed


@pytest.fixture
def model() -> CostModel:
    return CostModel("h100-sxm", mode="predict")


def _mm(m: int, n: int, k: int, dtype: str = "bfloat16") -> KernelDescription:
    return KernelDescription(
        "aten::mm", (contiguous(dtype, m, k), transposed(dtype, k, n)), (contiguous(dtype, m, n),)
    )


def test_views_cost_nothing(model: CostModel) -> None:
    x = contiguous("float32", 8, 8)
    for op in (
        "aten::view",
        "aten::t",
        "aten::as_strided",
        "aten::detach",
        "aten::empty.memory_format",
        "aten::record_stream",
    ):
        cost = model.cost(KernelDescription(op, (x,), (x,)))
        assert (cost.duration_ps, cost.source, cost.launches) == (0, "none", 0), op


def test_empty_tensors_cost_nothing(model: CostModel) -> None:
    empty = contiguous("float32", 0, 8)
    assert model.cost(KernelDescription("aten::add.Tensor", (empty, empty), (empty,))).source == "none"


def test_a_product_is_between_half_and_all_of_the_peak(model: CostModel) -> None:
    cost = model.cost(_mm(8192, 8192, 8192))
    rate = 2 * 8192**3 / (cost.duration_ps * 1e-12)
    assert cost.klass == "gemm"
    assert 0.5 < rate / model.gpu.bf16_flops_per_s < 0.9


def test_slower_types_take_longer(model: CostModel) -> None:
    assert (
        model.cost(_mm(4096, 4096, 4096, "float32")).duration_ps
        > 4 * model.cost(_mm(4096, 4096, 4096)).duration_ps
    )


def test_tf32_needs_permission(model: CostModel) -> None:
    plain = _mm(4096, 4096, 4096, "float32")
    allowed = KernelDescription(plain.op, plain.args, plain.outs, (("tf32", True),))
    assert model.cost(allowed).duration_ps < 0.5 * model.cost(plain).duration_ps


def test_elementwise_follows_bytes(model: CostModel) -> None:
    big = contiguous("bfloat16", 1 << 28)
    cost = model.cost(KernelDescription("aten::add.Tensor", (big, big), (big,)))
    rate = 3 * big.logical_bytes / (cost.duration_ps * 1e-12)
    assert 0.7 < rate / model.gpu.memory_bytes_per_s < 1.0


def test_unknown_aten_operator_is_predicted_as_other(model: CostModel) -> None:
    x = contiguous("float32", 1024)
    cost = model.cost(KernelDescription("aten::brand_new_thing", (x,), (x,)))
    assert (cost.source, cost.klass) == ("predicted", "other")
    assert cost.duration_ps > 0


def test_custom_operator_is_unpriced_and_counted(model: CostModel) -> None:
    x = contiguous("float32", 1024)
    kernel = KernelDescription("mine::op", (x,), (x,))
    for _ in range(3):
        cost = model.cost(kernel)
    assert cost.source == "unpriced"
    assert cost.duration_ps > 0
    assert model.unpriced == {"mine::op": 3}


def test_unexpected_arguments_are_unpriced_with_the_reason(model: CostModel) -> None:
    x = contiguous("float32", 1024)
    kernel = KernelDescription("aten::mm", (x, 3), (x,))
    cost = model.cost(kernel)
    assert (cost.source, cost.klass) == ("unpriced", "gemm")
    assert cost.duration_ps > 0
    assert model.unpriced == {"aten::mm": 1}
    assert "should be a tensor" in next(iter(model.failures.values()))


def test_store_mode_does_not_predict() -> None:
    x = contiguous("float32", 1024)
    assert (
        CostModel("a100", mode="store").cost(KernelDescription("aten::neg", (x,), (x,))).source == "unpriced"
    )


def test_batch_is_msgpack_in_and_out(model: CostModel) -> None:
    x = contiguous("float32", 1024)
    kernels = [
        KernelDescription("aten::neg", (x,), (x,)),
        KernelDescription("aten::view", (x,), (x,)),
        _mm(64, 64, 64),
    ]
    answer = msgpack.unpackb(model.cost_batch(msgpack.packb([encode_kernel(k) for k in kernels])))
    assert [a[1] for a in answer] == ["predicted", "none", "predicted"]
    assert [a[5] > 0 for a in answer] == [False, False, True]
    for duration_ps, _, klass, launches, scratch, _ in answer:
        assert isinstance(duration_ps, int)
        assert klass in CLASSES
        assert launches >= 0
        assert scratch >= 0


@pytest.mark.parametrize("request_", [{"op": "aten::neg"}, [1], [{"op": "aten::neg", "args": [["T"]]}], 7])
def test_bad_batch_is_refused(model: CostModel, request_: object) -> None:
    with pytest.raises(KernelFormatError):
        model.cost_batch(msgpack.packb(request_))


def test_truncated_batch_is_refused(model: CostModel) -> None:
    with pytest.raises(KernelFormatError):
        model.cost_batch(msgpack.packb([encode_kernel(_mm(64, 64, 64))])[:-3])


def test_repeated_elements_give_the_same_and_count_unpriced(model: CostModel) -> None:
    x = contiguous("float32", 1024)
    kernels = [KernelDescription("mine::op", (x,), (x,)), _mm(64, 64, 64)]
    request_ = msgpack.packb([encode_kernel(k) for k in kernels])
    assert model.cost_batch(request_) == model.cost_batch(request_)
    assert model.unpriced == {"mine::op": 2}


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, store, measure, predict"):
        CostModel("a100", mode="guess")


def test_cpu_tensors_cost_a_gpu_nothing(model: CostModel) -> None:
    x = contiguous("float32", 1024, device="cpu")
    assert model.cost(KernelDescription("aten::neg", (x,), (x,))).source == "none"


def test_host_copy_is_slower_unpinned(model: CostModel) -> None:
    host, device = contiguous("float32", 1 << 24, device="cpu"), contiguous("float32", 1 << 24)
    slow = model.cost(KernelDescription("aten::copy_", (device, host, False), (device,)))
    fast = model.cost(KernelDescription("aten::copy_", (device, host, True), (device,), (("pinned", True),)))
    assert slow.duration_ps > 2 * fast.duration_ps
    assert slow.klass == "copy"


def test_foreach_launches_follow_chunks(model: CostModel) -> None:
    tensors = TensorList(tuple(contiguous("float32", 1024) for _ in range(250)))
    cost = model.cost(KernelDescription("aten::_foreach_mul_.Scalar", (tensors, 2.0), ()))
    assert cost.launches == 3  # 110 tensors per launch at depth one


class SlowMeasurements:
    """Measures anything, slowly, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.measured: list[str] = []

    def lookup(self, kernel: KernelDescription, key: str) -> float | None:
        return None

    def measure(self, kernel: KernelDescription, key: str) -> float | None:
        self.measured.append(key)
        time.sleep(0.05)
        return 7e-6


def test_ranks_that_ask_for_one_kernel_at_once_have_it_measured_once() -> None:
    source = SlowMeasurements()
    model = CostModel("cpu", mode="measure", measured=source)
    with ThreadPoolExecutor(8) as ranks:
        costs = list(ranks.map(model.cost, [_mm(64, 64, 64, "float32")] * 8))
    assert len(source.measured) == 1
    assert {(cost.duration_ps, cost.source) for cost in costs} == {(7_000_000, "measured")}


def test_a_kernel_of_several_launches_is_one_call_on_the_cpu() -> None:
    x, w = contiguous("float32", 64, 512), contiguous("float32", 512)
    row = contiguous("float32", 64, 1)
    norm = KernelDescription(
        "aten::native_layer_norm_backward", (x, x, None, row, row, w, w, None), (x, w, w)
    )
    assert CostModel("h100", mode="predict").cost(norm).launches > 1
    assert CostModel("cpu", mode="predict").cost(norm).launches == 1
