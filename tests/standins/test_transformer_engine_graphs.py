"""What Megatron's CUDA graphs need of Transformer Engine's stand-in."""

from __future__ import annotations

from pathlib import Path

from standins.running import run_script

GRAPH = """
import torch, transformer_engine.pytorch as te
# Megatron-LM 0.16 looks for CUDA graphs by importing all of these at once (core/transformer/cuda_graphs.py).
from transformer_engine.pytorch.distributed import is_fp8_activation_recompute_enabled
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.graph import make_graphed_callables, restore_fp8_tensors, save_fp8_tensors
from transformer_engine.pytorch.graph import set_capture_end, set_capture_start
from transformer_engine.pytorch.module.base import TransformerEngineBaseModule
from transformer_engine.pytorch.utils import make_weak_ref

x = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
held = torch.cuda.memory_allocated()
ref, (other, number) = make_weak_ref(x), make_weak_ref((x[1:3, ::2], 7))
print("same", ref.data_ptr() == x.data_ptr(), other.data_ptr() == x[1:3].data_ptr(), other.stride(), number)
print("held", torch.cuda.memory_allocated() == held)
del x
print("freed", torch.cuda.memory_allocated() == held - 4 * 2**20)

tracker = te.distributed.CudaRNGStatesTracker()
tracker.add("model-parallel-rng", 123)
state = tracker.get_states()["model-parallel-rng"]
print("state", type(state).__name__, state.initial_seed())
with tracker.fork():
    print("inside", torch.cuda.initial_seed())
print("outside", torch.cuda.initial_seed() != 123)
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(state)
linear = te.Linear(256, 256)
y = torch.zeros(8, 256, device="cuda")
with torch.no_grad():
    linear(y)
    set_capture_start()
    with torch.cuda.graph(graph), tracker.fork():
        out = torch.dropout(linear(y), 0.5, True)
    set_capture_end()
    graph.replay()
restore_fp8_tensors([linear], save_fp8_tensors([linear], None))
print("replayed", out.shape)
"""


def test_graphs_share_buffers_and_register_random_states(tmp_path: Path) -> None:
    log, summary = run_script(tmp_path, GRAPH)
    lines = dict(line.split(" ", 1) for line in log.splitlines() if " " in line)
    assert lines["same"] == "True True (1024, 2) 7"
    assert lines["held"] == "True"
    assert lines["freed"] == "True"
    assert lines["state"] == "Generator 123"
    assert lines["inside"] == "123"
    assert lines["outside"] == "True"
    assert lines["replayed"] == "torch.Size([8, 256])"
    dropout = [kernel for kernel in summary["top_kernels"] if "dropout" in kernel["name"]]
    assert [kernel["count"] for kernel in dropout] == [1], dropout
