"""Apex's stand-in: kernels, saved tensors and memory are those of the library."""

from __future__ import annotations

from pathlib import Path

from standins.running import run_script

OPTIMIZERS = """
import torch
from apex.optimizers import FusedAdam, FusedSGD, FusedLAMB
N = 1 << 20
for kind, states in ((FusedAdam, 2), (FusedLAMB, 2)):
    p = torch.nn.Parameter(torch.zeros(N, device="cuda"))
    p.grad = torch.zeros_like(p)
    optimizer = kind([p], lr=1e-3)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    print(kind.__name__, (torch.cuda.memory_allocated() - before) // (4 * N))
p = torch.nn.Parameter(torch.zeros(N, device="cuda", dtype=torch.bfloat16))
p.grad = torch.zeros_like(p)
optimizer = FusedAdam([p], lr=1e-3, master_weights=True)
before = torch.cuda.memory_allocated()
optimizer.step()
print("master", (torch.cuda.memory_allocated() - before) // (4 * N))
a, b, c = (torch.cuda.Event(enable_timing=True) for _ in range(3))
torch.cuda.synchronize()
a.record(); optimizer.step(); b.record()
torch.cuda.synchronize()
print("adam_ms", a.elapsed_time(b))
"""

NORMS = """
import torch
from apex.normalization import FusedLayerNorm, FusedRMSNorm
from apex.contrib.layer_norm.layer_norm import FastLayerNorm
import scaled_upper_triang_masked_softmax_cuda as softmax
x = torch.zeros(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for kind in (FusedLayerNorm, FusedRMSNorm, FastLayerNorm):
    norm = kind(1024).cuda().bfloat16()
    before = torch.cuda.memory_allocated()
    out = norm(x)
    kept = torch.cuda.memory_allocated() - before - out.nbytes
    out.backward(torch.zeros_like(out))
    print(kind.__name__, kept, norm.weight.grad.shape, x.grad.shape)
    del out
s = torch.zeros(16, 512, 512, device="cuda", dtype=torch.bfloat16)
before = torch.cuda.memory_allocated()
out = softmax.forward(s, 1.0)
print("softmax", torch.cuda.memory_allocated() - before == out.nbytes)
grad = torch.zeros_like(out)
print("in place", softmax.backward(grad, out, 1.0).data_ptr() == grad.data_ptr())
import amp_C
from apex.multi_tensor_apply import multi_tensor_applier
flag = torch.zeros(1, dtype=torch.int, device="cuda")
norm, each = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, [[x.grad, s]], True)
multi_tensor_applier(amp_C.multi_tensor_scale, flag, [[s], [s]], 0.5)
print("flag", flag.item(), norm.shape, each.shape)
"""


def test_optimizers_hold_and_move_what_apex_does(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, OPTIMIZERS)
    figures = dict(line.split() for line in log.splitlines() if len(line.split()) == 2)
    assert figures["FusedAdam"] == "2"
    assert figures["FusedLAMB"] == "2"
    assert figures["master"] == "3"  # two moments and the fp32 copy
    # 2 bytes of gradient read, parameter written, three fp32 states read and written: 28 bytes an element.
    moved_ms = (1 << 20) * 28 / 3.35e12 * 1e3
    assert moved_ms < float(figures["adam_ms"]) < 3 * moved_ms + 0.01
    assert summary["coverage"]["unpriced"] == 0.0
    kernels = {kernel["name"]: kernel["class"] for kernel in summary["top_kernels"]}
    assert kernels["phantom::multi_tensor_adam"] == "optimizer"


def test_norms_and_softmax_save_what_apex_saves(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, NORMS)
    assert "FusedLayerNorm 32768 torch.Size([1024])" in log  # mean and deviation, fp32, of 4096 rows
    assert "FastLayerNorm 32768" in log
    assert "FusedRMSNorm 16384" in log
    assert "softmax True" in log
    assert "in place True" in log
    assert "flag 0 torch.Size([1]) torch.Size([2])" in log
    assert summary["coverage"]["unpriced"] == 0.0
