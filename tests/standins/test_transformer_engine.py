"""Transformer Engine's stand-in: what it keeps, launches and sends is what the library does."""

from __future__ import annotations

import re
from pathlib import Path

from standins.running import run_script

SAVED = """
import torch, transformer_engine.pytorch as te
S, B, H = 1024, 2, 1024
x = torch.zeros(S, B, H, device="cuda", dtype=torch.bfloat16, requires_grad=True)
ACT = x.nbytes
torch.mm(x[0], x[0].t())  # the first product allocates cuBLAS's workspace

def kept(name, run):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = run()
    print(name, (torch.cuda.memory_allocated() - before - out.nbytes) / ACT, flush=True)
    return out

linear = te.Linear(H, H, params_dtype=torch.bfloat16)
kept("linear", lambda: linear(x)).sum().backward()
fused = te.LayerNormLinear(H, 3 * H, params_dtype=torch.bfloat16, normalization="RMSNorm")
kept("layernorm_linear", lambda: fused(x)).sum().backward()
mlp = te.LayerNormMLP(H, 4 * H, params_dtype=torch.bfloat16, activation="swiglu")
kept("layernorm_mlp", lambda: mlp(x)).sum().backward()
q, k, v = (torch.zeros(S, B, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
attention = te.DotProductAttention(16, 64)
out = kept("attention", lambda: attention(q, k, v))
out.sum().backward()
print("shapes", out.shape, q.grad.shape, fused.weight.grad.shape, mlp.fc1_weight.grad.shape)
wide = te.Linear(H, H, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True, bias=False)
wide.weight.main_grad = torch.zeros(H, H, device="cuda")
wide.weight.grad_added_to_main_grad = False
wide(x).sum().backward()
print("main_grad", wide.weight.grad_added_to_main_grad, wide.weight.grad.shape)
from transformer_engine.common.recipe import DelayedScaling
with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling()):
    out = kept("fp8_linear", lambda: linear(x))
out.sum().backward()
try:
    te.Linear(H, H, ub_overlap_ag=True, ub_name="qkv")
except NotImplementedError as error:
    print("refused", error)
"""

CONTEXT = """
import os, torch, torch.distributed as dist, transformer_engine.pytorch as te
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
world = dist.get_world_size()
S = 8192 // world
for kind in ("p2p", "all_gather", "a2a"):
    attention = te.DotProductAttention(16, 128, cp_comm_type=kind, attn_mask_type="causal")
    attention.set_context_parallel_group(dist.group.WORLD, list(range(world)), torch.cuda.Stream(), kind)
    like = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (torch.zeros(S, 1, 16, 128, **like) for _ in "qkv")
    grad = torch.zeros(S, 1, 16 * 128, device="cuda", dtype=torch.bfloat16)
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    out = attention(q, k, v)
    middle.record()
    out.backward(grad)
    end.record()
    torch.cuda.synchronize()
    print(kind, out.shape, k.grad.shape, start.elapsed_time(middle), middle.elapsed_time(end), flush=True)
whole = te.DotProductAttention(16, 128, attn_mask_type="causal")
q, k, v = (torch.zeros(8192, 1, 16, 128, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
start.record(); whole(q, k, v); end.record()
torch.cuda.synchronize()
print("whole", start.elapsed_time(end))
dist.destroy_process_group()
"""

PARALLEL = """
import os, torch, torch.distributed as dist, transformer_engine.pytorch as te
from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
group, H = dist.group.WORLD, 1024
common = dict(tp_group=group, sequence_parallel=True, params_dtype=torch.bfloat16, bias=False)
column = te.LayerNormLinear(H, 4 * H, parallel_mode="column", **common)
row = te.Linear(4 * H, H, parallel_mode="row", **common)
x = torch.zeros(512, 2, H, device="cuda", dtype=torch.bfloat16, requires_grad=True)
out = row(column(x))
assert out.shape == x.shape, out.shape
out.sum().backward()
assert column.weight.grad.shape == (2 * H, H) and x.grad.shape == x.shape
logits = torch.zeros(512, 2, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
target = torch.zeros(512, 2, dtype=torch.long, device="cuda")
loss = parallel_cross_entropy(logits * 1, target, 0.0, False, group)
loss.sum().backward()
assert loss.shape == (512, 2) and logits.grad.shape == logits.shape
dist.destroy_process_group()
"""


def test_modules_keep_what_the_library_keeps(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, SAVED)
    kept = {name: float(value) for name, value in re.findall(r"^(\w+) ([-\d.]+)$", log, re.MULTILINE)}
    # Units of the input. The linear layer keeps its input, which is there already.
    assert kept["linear"] == 0.0
    # The norm's output, and one fp32 number a row.
    assert 1.0 <= kept["layernorm_linear"] < 1.01
    # The norm's output, the product (8 wide) and the activation (4 wide).
    assert 13.0 <= kept["layernorm_mlp"] < 13.01
    # The log-sum-exp: 16 heads of fp32 a row of 1,024 values of 2 bytes; the rest is there already.
    assert 0.03 < kept["attention"] < 0.04
    # The input's transpose in fp8 and the weight's two copies (1 MiB each).
    assert 0.99 < kept["fp8_linear"] < 1.02
    assert "shapes torch.Size([1024, 2, 1024]) torch.Size([1024, 2, 16, 64])" in log
    assert "main_grad True torch.Size([1024, 1024])" in log
    assert "ub_overlap_ag" in log
    assert "--tp-comm-overlap" in log
    assert summary["coverage"]["unpriced"] == 0.0
    kernels = {kernel["name"]: kernel["class"] for kernel in summary["top_kernels"]}
    assert kernels["phantom::wgrad_accumulate"] == "gemm"
    assert kernels["aten::_scaled_mm"] == "gemm"


def test_context_parallel_attention_divides_the_work_and_sends_keys_and_values(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, CONTEXT, gpus=4)
    times = {
        name: (float(forward), float(backward))
        for name, forward, backward in re.findall(r"^(\w+) torch.* ([\d.]+) ([\d.]+)$", log, re.MULTILINE)
    }
    whole = float(re.findall(r"^whole ([\d.]+)$", log, re.MULTILINE)[0])
    assert set(times) == {"p2p", "all_gather", "a2a"}
    for forward, backward in times.values():
        assert 0.25 * whole * 0.8 < forward < whole
        assert backward > forward
    sizes = {(row["kind"], row["bytes"]): row["count"] for row in summary["collectives"]}
    part = 2048 * 16 * 128 * 2  # bytes of a rank's keys
    # Keys and values go round in n-1 steps; backward sends them again, then with their gradients, then those.
    assert sizes[("send_recv", 2 * part)] == 4 * (3 + 2)
    assert sizes[("send_recv", 4 * part)] == 4 * 2
    assert {kind for kind, _ in sizes} >= {"all_gather", "reduce_scatter", "all_to_all"}
    assert summary["coverage"]["unpriced"] == 0.0


def test_sequence_parallel_linear_layers_gather_and_scatter(tmp_path: Path) -> None:
    _, summary = run_script(tmp_path, PARALLEL, gpus=2)
    count = {}
    for row in summary["collectives"]:
        count[row["kind"]] = count.get(row["kind"], 0) + row["count"]
    # Column: gather forward, gather again backward, scatter of the input's gradient. Row: scatter forward,
    # gather backward. Cross entropy: one gather of the rows' statistics.
    assert count["all_gather"] == 3 + 1
    assert count["reduce_scatter"] == 2
    assert summary["coverage"]["unpriced"] == 0.0
