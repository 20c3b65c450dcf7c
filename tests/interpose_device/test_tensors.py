"""The device under real tensors: allocation, autograd's thread, legacy types, pickling, pinned copies."""

from __future__ import annotations

import io
from types import ModuleType

import pytest
import torch

MIB = 1 << 20


def test_parameters_and_gradients_are_counted(device: ModuleType) -> None:
    model = torch.nn.Linear(1024, 1024, device="cuda")
    # 4 MiB of weight, 4 KiB of bias
    assert torch.cuda.memory_allocated() == 4 * MIB + 4096
    x = torch.randn(256, 1024, device="cuda")
    assert torch.cuda.memory_allocated() == 5 * MIB + 4096
    model(x).sum().backward()
    assert model.weight.grad is not None
    workspace = 2 * 32 * MIB  # one for each thread that multiplies: this one and the backward pass
    assert torch.cuda.memory_allocated() == 9 * MIB + 2 * 4096 + workspace


def test_backward_runs_on_the_stream_of_the_forward_pass(device: ModuleType) -> None:
    seen: list[tuple[int, torch.cuda.Stream]] = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append((torch.cuda.current_device(), torch.cuda.current_stream()))
            return grad

    side = torch.cuda.Stream(device=1)
    x = torch.ones(4, device="cuda:1", requires_grad=True)
    with torch.cuda.stream(side):
        y = Watch.apply(x)
    y.sum().backward()
    assert seen == [(1, side)]


def test_legacy_types(device: ModuleType) -> None:
    x = torch.zeros(2, device="cuda")
    assert isinstance(x, torch.cuda.FloatTensor)
    assert isinstance(x.bfloat16(), torch.cuda.BFloat16Tensor)
    assert isinstance(x.half(), torch.cuda.HalfTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert x.type() == "torch.cuda.FloatTensor"


def test_save_and_load(device: ModuleType) -> None:
    buffer = io.BytesIO()
    torch.save({"step": torch.tensor([3, 4], device="cuda:1"), "w": torch.zeros(10, device="cuda:1")}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded["step"].device == torch.device("cuda", 1)
    assert loaded["step"].tolist() == [3, 4]
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["step"].tolist() == [3, 4]
    buffer.seek(0)
    assert torch.load(buffer, map_location="cuda:0")["w"].device == torch.device("cuda", 0)


def test_storage_round_trip(device: ModuleType) -> None:
    x = torch.arange(6, device="cuda")
    storage = x.untyped_storage()
    assert storage.device.type == "cuda"
    assert storage.nbytes() == 48
    assert torch.tensor([], dtype=torch.int64).set_(storage.cpu()).tolist() == list(range(6))
    size = storage.size()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0
    storage.resize_(size)
    assert x.shape == (6,)


def test_record_stream_of_a_tensor(device: ModuleType) -> None:
    side = torch.cuda.Stream()
    x = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    x.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_980_000)
    del x
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 16 * MIB
    torch.cuda.synchronize()
    y = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == 16 * MIB
    del y


def test_random_operators_advance_the_offset(device: ModuleType) -> None:
    torch.cuda.manual_seed(1)
    before = torch.cuda.get_rng_state()
    torch.randn(1000, device="cuda")
    after = torch.cuda.get_rng_state()
    assert not torch.equal(before, after)
    torch.cuda.set_rng_state(before)
    torch.randn(1000, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), after)
    generator = torch.Generator("cuda")
    generator.manual_seed(1)
    torch.empty(1000, device="cuda").normal_(generator=generator)
    assert generator.get_offset() == 4
    # 132 SMs x 8 blocks x 256 threads x 4 numbers = 1,081,344 in one go; ten of them, four numbers each
    torch.empty(10_000_000, device="cuda").uniform_(generator=generator)
    assert generator.get_offset() == 4 + 40


def test_checkpointing_restores_the_random_state(device: ModuleType) -> None:
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True).sum().backward()
    assert x.grad is not None


def test_loader_with_pinned_memory(device: ModuleType) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(32).float())
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, pin_memory=True)
    for (batch,) in loader:
        assert batch.is_pinned()
        assert batch.to("cuda", non_blocking=True).device.type == "cuda"


def test_out_of_memory_in_a_step(device: ModuleType) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 100\.00 GiB"):
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    x = torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        x + x


def test_autocast_and_scaler(device: ModuleType) -> None:
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(torch.randn(2, 8, device="cuda"))
    assert out.dtype == torch.float16
    scaler.scale(out.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0
