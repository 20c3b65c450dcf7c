"""Every operator of torch's operator database has a finite positive cost or is listed as unpriced."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from record import Recorder  # noqa: E402

from phantom.kernels import CostModel, KernelDescription  # noqa: E402
from phantom.kernels.predict.operator_classes import CLASSES  # noqa: E402

_A_SECOND_PS = 10**12


def _dispatched() -> Iterator[KernelDescription]:
    """The first sample of every operator, on the CPU, forward and backward."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if not info.dtypes:
            continue
        dtype = torch.float32 if torch.float32 in info.dtypes else sorted(info.dtypes, key=str)[0]
        recorder = Recorder()
        try:
            sample: Any = next(iter(info.sample_inputs("cpu", dtype, requires_grad=True)))
            with recorder:
                result = info(sample.input, *sample.args, **sample.kwargs)
                outputs = [
                    t
                    for t in (result if isinstance(result, (list, tuple)) else [result])
                    if _differentiable(t)
                ]
                if outputs:
                    sum((t.abs() if t.is_complex() else t).sum() for t in outputs).backward()
        except Exception:
            pass  # what it cannot do on the CPU is its own affair; what it dispatched until then counts
        yield from recorder.kernels


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@pytest.fixture(scope="module")
def kernels() -> list[KernelDescription]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_dispatched())


@pytest.mark.parametrize("gpu", ["h100-sxm", "t4"])
def test_every_dispatched_operator_is_priced(kernels: list[KernelDescription], gpu: str) -> None:
    model = CostModel(gpu, mode="predict")
    assert len({kernel.op for kernel in kernels}) > 550
    for kernel in kernels:
        cost = model.cost(kernel)
        assert cost.klass in CLASSES
        if cost.source == "none":
            assert (cost.duration_ps, cost.launches) == (0, 0), kernel.op
            continue
        assert 0 < cost.duration_ps < _A_SECOND_PS, kernel.op
        assert cost.launches >= 1, kernel.op
        assert cost.source == ("predicted" if kernel.namespace == "aten" else "unpriced"), kernel.op
    assert all(not op.startswith("aten::") for op in model.unpriced)


def test_only_linear_algebra_and_transforms_are_of_no_class(kernels: list[KernelDescription]) -> None:
    model = CostModel("h100-sxm", mode="predict")
    allowed = (
        "linalg",
        "_linalg",
        "_fft",
        "cholesky",
        "geqrf",
        "lu_",
        "ormqr",
        "orgqr",
        "triangular",
        "_sparse",
        "_to_sparse",
    )
    others = {
        kernel.base_name
        for kernel in kernels
        if kernel.namespace == "aten"
        and model.cost(kernel).klass == "other"
        and model.cost(kernel).source != "none"
    }
    assert {name for name in others if not name.startswith(allowed)} == set()
