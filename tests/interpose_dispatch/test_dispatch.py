"""Boxed kernels and the metadata cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

import msgpack
import pytest
import torch


def test_results_are_genuine_cuda_tensors(extension: ModuleType) -> None:
    a = torch.randn(3, 4, device="cuda", requires_grad=True)
    b = torch.randn(4, 5, device="cuda:0")
    out = (a @ b).softmax(-1)
    assert out.is_cuda
    assert out.shape == (3, 5)
    out.sum().backward()
    assert a.grad is not None
    assert a.grad.shape == (3, 4)
    assert a.grad.device == torch.device("cuda", 0)


def test_second_call_hits_the_cache(extension: ModuleType) -> None:
    a = torch.empty(7, 11, device="cuda")
    torch.tanh(a)
    before = extension.dispatch_counters()
    torch.tanh(a)
    after = extension.dispatch_counters()
    assert after["misses"] == before["misses"]
    assert after["hits"] == before["hits"] + 1


def test_changing_float_scalar_does_not_miss(extension: ModuleType) -> None:
    a = torch.empty(7, 13, device="cuda")
    a.add_(a, alpha=0.5)
    torch._foreach_add_([a, a], [0.3, 0.4])
    before = extension.dispatch_counters()["misses"]
    for step in range(2, 20):
        a.add_(a, alpha=0.5 / step)
        torch._foreach_add_([a, a], [0.3 / step, 0.4])
    assert extension.dispatch_counters()["misses"] == before


def test_scalar_that_decides_the_size_is_part_of_the_key(extension: ModuleType) -> None:
    assert torch.arange(0, 5.0, 0.5, device="cuda").shape == (10,)
    assert torch.arange(0, 5.0, 0.25, device="cuda").shape == (20,)


def test_dtype_and_strides_are_part_of_the_key(extension: ModuleType) -> None:
    a = torch.empty(4, 6, device="cuda")
    assert torch.add(a, a).dtype == torch.float32
    assert torch.add(a.half(), a.half()).dtype == torch.float16
    assert torch.add(a.t(), a.t()).stride() == (1, 6)


def test_cache_is_bounded(extension: ModuleType) -> None:
    extension.set_metadata_capacity(64)
    try:
        for n in range(1, 600):
            torch.empty(n, device="cuda").tanh()
        assert extension.dispatch_counters()["entries"] <= 64 + 32
        assert torch.empty(3, device="cuda").tanh().shape == (3,)
    finally:
        extension.set_metadata_capacity(1 << 17)


def test_views_share_the_storage(extension: ModuleType) -> None:
    a = torch.empty(4, 6, device="cuda")
    for view in (a[1], a.t(), a.view(24), a.split(2)[1], a.unsqueeze(0), a.expand(3, 4, 6), a.chunk(2, 1)[1]):
        assert view.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
    assert a[1:].storage_offset() == 6
    assert torch.split(a, [1, 3])[1].storage_offset() == 6


def test_out_argument_is_resized_and_in_place_keeps_identity(extension: ModuleType) -> None:
    a = torch.empty(5, 5, device="cuda")
    out = torch.empty(0, device="cuda")
    assert torch.add(a, a, out=out) is out
    assert out.shape == (5, 5)
    assert out.untyped_storage().nbytes() == 100
    assert a.mul_(2) is a
    a.t_()
    a.unsqueeze_(0)
    assert a.shape == (1, 5, 5)


def test_mixed_devices_raise_as_on_a_gpu(extension: ModuleType) -> None:
    a = torch.empty(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.empty(3)
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.empty(3, device="cuda:1")
    assert (a + torch.tensor(2.0)).shape == (3,)


def test_shape_errors_come_from_pytorch(extension: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|same reduction dim"):
        torch.empty(3, 4, device="cuda") @ torch.empty(3, 4, device="cuda")


def test_operator_registered_later_by_a_library(extension: ModuleType) -> None:
    library = torch.library.Library("phantom_test_lib", "DEF")
    library.define("twice_as_long(Tensor x, int n) -> Tensor")
    library.impl("twice_as_long", lambda x, n: x.new_empty(x.shape[0] * n), "Meta")
    out = torch.ops.phantom_test_lib.twice_as_long(torch.empty(4, device="cuda"), 3)
    assert out.shape == (12,)
    assert out.is_cuda


def test_python_custom_op(extension: ModuleType) -> None:
    @torch.library.custom_op("phantom_test_lib2::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    @scaled.register_fake
    def _(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x)

    assert scaled(torch.empty(4, 2, device="cuda"), 2.0).shape == (4, 2)


def test_operator_without_meta_says_so(extension: ModuleType) -> None:
    library = torch.library.Library("phantom_test_lib3", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match=r"register_fake|fake impl"):
        torch.ops.phantom_test_lib3.opaque(torch.empty(4, device="cuda"))


def test_cost_request_and_reply(extension: ModuleType) -> None:
    asked: list[dict] = []

    def price(request: bytes) -> bytes:
        kernels = msgpack.unpackb(request)
        asked.extend(kernels)
        return msgpack.packb([[5_000_000, "predicted", "gemm", 2, 4096]])

    extension.set_cost_callback(price)
    a = torch.empty(16, 32, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, a.t())
    assert asked[-1]["op"] == "aten::mm"
    assert asked[-1]["args"] == [
        ["T", "bfloat16", [16, 32], [32, 1], "cuda"],
        ["T", "bfloat16", [32, 16], [1, 32], "cuda"],
    ]
    assert asked[-1]["outs"] == [["T", "bfloat16", [16, 16], [16, 1], "cuda"]]
    count = len(asked)
    torch.mm(a, a.t())
    a.view(-1)
    assert len(asked) == count


def test_kernel_time_reaches_the_stream(extension: ModuleType) -> None:
    extension.set_cost_callback(lambda _: msgpack.packb([[7_000_000_000, "measured", "gemm", 3, 0]]))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a = torch.empty(8, 8, device="cuda")
    torch.cuda.synchronize()
    start.record()
    torch.mm(a, a)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 7.0
    assert start.elapsed_time(end) < 7.2


def test_threads_share_the_cache(extension: ModuleType) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in range(1, 40):
                a = torch.empty(n, seed + 1, device="cuda", requires_grad=True)
                (a * 2).sum().backward()
                assert a.grad is not None
                assert a.grad.shape == (n, seed + 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_script_default_device_does_not_leak_into_meta_kernels(extension: ModuleType) -> None:
    torch.set_default_device("cuda")
    try:
        out = torch.nn.functional.cross_entropy(torch.randn(4, 10), torch.zeros(4, dtype=torch.long))
        assert out.is_cuda
        assert torch.linspace(0, 1, 5).is_cuda
    finally:
        torch.set_default_device(None)


def test_recurrent_network_runs_as_one_cudnn_call(extension: ModuleType) -> None:
    lstm = torch.nn.LSTM(8, 16, num_layers=2, batch_first=True).cuda()
    out, (h, c) = lstm(torch.randn(3, 5, 8, device="cuda"))
    assert out.shape == (3, 5, 16)
    assert h.shape == c.shape == (2, 3, 16)
    out.sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in lstm.parameters())


def test_attention_choice_follows_the_cuda_rules(extension: ModuleType) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def choice(dtype: torch.dtype, head_dim: int, *, masked: bool = False, causal: bool = False) -> int:
        q = torch.empty(2, 4, 16, head_dim, device="cuda", dtype=dtype)
        mask = torch.empty(16, 16, device="cuda", dtype=dtype) if masked else None
        return torch._fused_sdp_choice(q, q, q, mask, 0.0, causal)

    assert choice(torch.bfloat16, 64) == SDPBackend.FLASH_ATTENTION.value
    assert choice(torch.bfloat16, 64, masked=True) == SDPBackend.EFFICIENT_ATTENTION.value
    assert choice(torch.float32, 64) == SDPBackend.EFFICIENT_ATTENTION.value
    assert choice(torch.float32, 63) == SDPBackend.MATH.value
    assert choice(torch.float64, 64) == SDPBackend.MATH.value
    with sdpa_kernel([SDPBackend.MATH]):
        assert choice(torch.bfloat16, 64) == SDPBackend.MATH.value


def test_sparse_embedding_gradient(extension: ModuleType) -> None:
    table = torch.nn.Embedding(10, 4, sparse=True).cuda()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2, 2], device="cuda")).sum().backward()
    grad = table.weight.grad
    assert grad is not None
    assert grad.is_sparse
    assert grad._values().shape == (3, 4)
    assert grad.coalesce().shape == (10, 4)
    optimizer.step()


def test_sync_batch_norm_pieces(extension: ModuleType) -> None:
    x = torch.randn(4, 3, 5, 5, device="cuda", dtype=torch.bfloat16)
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    assert mean.shape == invstd.shape == (3,)
    assert mean.dtype == torch.float32


def test_linear_algebra_reports_success(extension: ModuleType) -> None:
    a = torch.randn(20, 20, device="cuda")
    assert torch.linalg.inv(a).shape == (20, 20)
    assert torch.linalg.inv_ex(a).info.item() == 0


def test_channels_last_stays_channels_last_through_a_convolution(extension: ModuleType) -> None:
    x = torch.randn(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    out = net.cuda()(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (
            lambda x: torch.nn.functional.rms_norm(x, [6], torch.ones(6, device="cuda", requires_grad=True)),
            {"aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"},
        ),
        (torch.nn.functional.silu, {"aten::silu", "aten::silu_backward"}),
        (torch.nn.functional.mish, {"aten::mish", "aten::mish_backward"}),
    ],
)
def test_composite_with_a_cuda_kernel_is_one_kernel(
    extension: ModuleType, call: Callable[[torch.Tensor], torch.Tensor], kernels: set[str]
) -> None:
    # In a CPU build these have only a composite kernel for the GPU; on a GPU each is one kernel.
    asked: list[str] = []

    def price(request: bytes) -> bytes:
        names = [kernel["op"] for kernel in msgpack.unpackb(request)]
        asked.extend(names)
        return msgpack.packb([[1_000_000, "predicted", "x", 1, 0]] * len(names))

    extension.set_cost_callback(price)
    # Sizes that no other test has: a known kernel is not asked for again.
    x = torch.empty(3, 5, 6, device="cuda", requires_grad=True)
    out = call(x)
    assert out.shape == x.shape
    out.backward(torch.empty_like(out))
    assert x.grad is not None
    assert set(asked) - {"aten::fill_.Scalar"} == kernels
