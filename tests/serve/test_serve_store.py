"""A kernel store that cannot be used is bad configuration: `phantom serve` ends with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from phantom.cli.main import cli
from phantom.kernels import CostModel, KernelDescription, TensorMeta
from phantom.launch.errors import UsageError


@pytest.mark.parametrize(("mode", "content"), [("auto", b"no database"), ("store", None)])
def test_a_store_that_cannot_be_used(tmp_path: Path, mode: str, content: bytes | None) -> None:
    store = tmp_path / "kernels.sqlite"
    if content is not None:
        store.write_bytes(content)
    arguments = ["serve", "--listen", "127.0.0.1:0", "--kernels", mode, "--store", str(store)]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert done.exception.status == 2
    assert "kernels.sqlite" in str(done.exception)
    assert content is None or store.read_bytes() == content


def test_requests_are_those_of_the_job_at_hand() -> None:
    model = CostModel("h100", mode="predict")
    x = TensorMeta("float32", (64, 64), (64, 1))
    relu = KernelDescription("aten::relu", (x,), (x,), ())
    model.cost(relu)
    model.begin_job(ranks_per_server=8)
    assert model.requests() == {}
    model.cost(relu)  # known already, and asked for by the next job too
    assert len(model.requests()) == 1
