"""grouped_gemm: one product a group, priced by their sizes; the gradients have the operands' shapes."""

from __future__ import annotations

from pathlib import Path

from standins.running import run_script

GROUPED = """
import torch
from grouped_gemm import ops
import grouped_gemm as gg
new = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
sizes = torch.tensor([1024, 0, 2048, 1024])
a = torch.randn(4096, 512, **new)
for trans, shape in ((False, (4, 512, 1024)), (True, (4, 1024, 512))):
    b = torch.randn(*shape, **new)
    out = ops.gmm(a, b, sizes, trans_b=trans)
    out.backward(torch.empty_like(out))
    print("shapes", tuple(out.shape), tuple(a.grad.shape), tuple(b.grad.shape) == shape)
try:
    gg.ops.permute(a, sizes)
except NotImplementedError as error:
    print(error)
"""


def test_groups_and_their_gradients(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, GROUPED)
    assert log.count("shapes (4096, 1024) (4096, 512) True") == 2
    assert "grouped_gemm.ops.permute: phantom's stand-in of grouped_gemm does not cover it" in log
    assert summary["coverage"]["unpriced"] == 0.0
    kernels = {kernel["name"]: kernel["count"] for kernel in summary["top_kernels"]}
    assert kernels["phantom::grouped_gemm"] == 6
