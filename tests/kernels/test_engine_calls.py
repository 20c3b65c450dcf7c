"""Engine calls and DeepEP: what drives their time, and their tables' readers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantom.kernels.accuracy.checked_row import CheckedRow, SkippedRow
from phantom.kernels.accuracy.expert_loads import expert_loads
from phantom.kernels.accuracy.tables import read_folder
from phantom.kernels.gpu import gpu_by_name
from phantom.kernels.predict.engine_calls.engine_constants import engine_constants
from phantom.kernels.predict.engine_calls.expert_exchange import ExpertExchange, expert_exchange_s
from phantom.kernels.predict.engine_calls.moe_layer import MoeLayer, moe_layer_s

H100 = gpu_by_name("h100")
ATTENTION = """system,lib,libver,kernel_source,attn_dtype,kv_cache_dtype,batch_size,isl,num_heads,num_key_value_heads,head_dim,time_us,tflops_causal
a100_sxm,vllm,0.14.0,vllm_flash_attn,bfloat16,bfloat16,8,8192,32,1,128,25399.1,173.2
a100_sxm,vllm,0.14.0,unheard_of,bfloat16,bfloat16,8,8192,32,1,128,1.0,1
"""  # noqa: E501
MOE = """system,libver,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,time_us
h100_sxm,1.3.0rc20,moe_torch_flow_cutlass,bfloat16,16384,2048,768,8,128,1,1,balanced,2691.6
h100_sxm,1.3.0rc20,moe_torch_flow_cutlass,bfloat16,16384,2048,768,8,128,1,16,power_law_1.2,500.0
"""  # noqa: E501
DEEPEP = """framework,version,device,op_name,kernel_source,node_num,hidden_size,num_token,num_topk,num_experts,dispatch_sms,dispatch_transmit_us,dispatch_notify_us,combine_sms,combine_transmit_us,combine_notify_us,system,libver
sglang,0.5.6,NVIDIA H100,normal,deepep,2,7168,4096,8,256,24,749.0,56.0,24,1777.0,50.0,h100_sxm,0.5.6
"""  # noqa: E501
SIMUMAX = """gpu,op,shape,efficiency,peak_tflops,tflops,source
B200-SXM-180GB,sdp_bwd,"batch=1, seq_len=4096, head_num=32, kv_head_num=8, qk_head_dim=128, v_head_dim=128, qkv_contiguous=False",0.786,2250.0,1768.71,x
"""  # noqa: E501

TRACES = """gpu,trace,op,input_dims,input_types,kernel,grid,count,median_us,min_us,max_us,source
NVIDIA H100 80GB HBM3,t,aten::cat,"[[[4, 1, 768], [4, 196, 768]], []]","[""TensorList"", ""Scalar""]",k,1,1,7.26,7,8,x
NVIDIA H100 80GB HBM3,t,aten::add,"[[16, 559, 1024], [16, 559, 1024], []]","[""c10::BFloat16"", ""c10::BFloat16"", ""Scalar""]",k,1,1,17.86,17,18,x
NVIDIA H100 80GB HBM3,t,aten::argmax,"[[1, 5], [], []]","[""int"", ""Scalar"", ""Scalar""]",k,1,1,3.7,3,4,x
"""  # noqa: E501


def test_kernels_of_traces_are_priced_by_their_shapes(tmp_path: Path) -> None:
    (tmp_path / "tracelens_h100_b200_kernels.csv").write_text(TRACES)
    rows = read_folder(tmp_path)
    checked = {row.klass: row for row in rows if isinstance(row, CheckedRow)}
    assert set(checked) == {"copy, from 1 MiB", "elementwise, from 1 MiB"}
    add = checked["elementwise, from 1 MiB"]
    assert add.predicted_s > 3 * 16 * 559 * 1024 * 2 / 3.35e12
    assert [row.reason for row in rows if isinstance(row, SkippedRow)] == [
        "aten::argmax: its work does not follow from its shapes"
    ]


def test_rows_of_every_table_are_priced(tmp_path: Path) -> None:
    tables = {
        "aic_attention_prefill_sample.csv": ATTENTION,
        "aic_moe_sample.csv": MOE,
        "aic_deepep_normal_sample.csv": DEEPEP,
        "simumax_op_efficiency.csv": SIMUMAX,
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    rows = read_folder(tmp_path)
    checked = {row.klass: row for row in rows if isinstance(row, CheckedRow)}
    assert set(checked) == {
        "prefill attention, bfloat16, bfloat16 cache", "MoE layer, bfloat16, even loads",
        "MoE layer, bfloat16, uneven loads", "DeepEP dispatch, 2 nodes", "DeepEP combine, 2 nodes",
        "attention backward, cudnn",
    }  # fmt: skip
    assert abs(checked["prefill attention, bfloat16, bfloat16 cache"].error) < 0.1
    assert abs(checked["MoE layer, bfloat16, even loads"].error) < 0.15
    # Transmission and notification together; the TFLOP/s of the whole square.
    assert checked["DeepEP combine, 2 nodes"].measured_s == pytest.approx(1827e-6)
    backward = checked["attention backward, cudnn"]
    assert backward.measured_s == pytest.approx(5 * 4096**2 * 32 * 256 / 1768.71e12)
    assert [row.reason for row in rows if isinstance(row, SkippedRow)] == [
        "no constants of a100_sxm vllm.unheard_of.bfloat16.bfloat16"
    ]


def test_uneven_loads_are_those_of_the_fullest_rank_and_always_the_same() -> None:
    draws = expert_loads(4096, topk=8, experts=128, ranks=16, kind="power_law_1.2")
    assert draws == expert_loads(4096, topk=8, experts=128, ranks=16, kind="power_law_1.2")
    assert all(len(loads) == 8 and max(loads) <= 4096 for loads in draws)
    even = expert_loads(4096, topk=8, experts=128, ranks=16, kind="balanced")
    assert even == [(256.0,) * 8]
    assert min(map(sum, draws)) > sum(even[0])


def test_a_layer_costs_by_the_loads_of_its_experts() -> None:
    constants = engine_constants(H100, "moe.trtllm_cutlass.bfloat16")
    assert constants is not None

    def seconds(*loads: float) -> float:
        layer = MoeLayer(
            tokens=4096, hidden=4096, inter=2048, topk=2, experts=8, loads=loads, weight_bytes=2.0,
            activation_bytes=2.0,
        )  # fmt: skip
        return moe_layer_s(layer, peak_flops_per_s=H100.bf16_flops_per_s, gpu=H100, constants=constants or {})

    assert seconds(1024.0, 1024.0) > seconds(1024.0, 0.0)
    # Many experts with a row each read all weights and fill no tile.
    assert seconds(*[1.0] * 256) > 3 * seconds(256.0)


def test_dispatch_is_bound_by_multiprocessors_or_by_wires() -> None:
    constants = engine_constants(H100, "deepep.dispatch")
    assert constants is not None

    def seconds(**changes: int) -> float:
        exchange = ExpertExchange(
            nodes=1, ranks_per_node=8, tokens=65536, hidden=7168, topk=8, experts=256, multiprocessors=4,
            combine=False,
        )  # fmt: skip
        return expert_exchange_s(replace(exchange, **changes), constants=constants or {})

    assert seconds(multiprocessors=8) == pytest.approx(seconds() / 2, rel=0.05)
    few = ExpertExchange(
        nodes=1, ranks_per_node=8, tokens=1, hidden=7168, topk=8, experts=256, multiprocessors=20,
        combine=False,
    )  # fmt: skip
    assert few.ranks_per_token == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.03)
    wide = replace(few, nodes=8)
    assert wide.nodes_per_token == pytest.approx(3.6, abs=0.15)  # at most four nodes
    assert seconds(nodes=8, multiprocessors=24) > 2 * seconds(nodes=2, multiprocessors=24)
