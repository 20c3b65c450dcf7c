"""GPUs by name."""

from __future__ import annotations

import pytest

from phantom.kernels.gpu import UnknownGpuError, gpu_by_name, known_gpus
from phantom.kernels.predict.constants import constants_for


@pytest.mark.parametrize("name", ["NVIDIA H100 SXM", "NVIDIA H100 80GB HBM3", "h100-sxm", "H100 SXM", "h100"])
def test_one_gpu_has_many_names(name: str) -> None:
    assert gpu_by_name(name).name == "NVIDIA H100 SXM"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownGpuError, match=r"known: .*NVIDIA A100 SXM"):
        gpu_by_name("NVIDIA Z999")


def test_misspelling_gets_a_hint() -> None:
    with pytest.raises(UnknownGpuError, match=r"did you mean 'NVIDIA H100 SXM'"):
        gpu_by_name("h100-sxn")


def test_every_gpu_has_constants_and_sane_figures() -> None:
    for gpu in known_gpus():
        constants_for(gpu.architecture).group("gemm.fp16")
        assert gpu.sm_count > 0
        assert gpu.memory_bytes_per_s > 1e9
        assert gpu.fp16_flops_per_s >= gpu.fp32_flops_per_s or gpu.is_cpu


def test_names_are_unique() -> None:
    names = [gpu.name for gpu in known_gpus()]
    assert len(names) == len(set(names))


def test_every_cluster_preset_names_a_known_gpu() -> None:
    cluster = pytest.importorskip("netsim.cluster")
    for name in cluster.list_presets():
        gpu = cluster.load_cluster(name).gpu
        assert gpu_by_name(gpu.name).architecture, name


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "memory_gb_per_s"),
    [
        ("L40S", 362, 864), ("L4", 121, 300), ("H20", 148, 4000), ("H800", 989, 3350),
        ("H100 PCIe", 756, 2000), ("H100 NVL", 835.5, 3938),
        ("RTX 6000 Ada", 364.2, 960), ("RTX PRO 6000", 467.8, 1792),
        ("GB200", 2500, 8000), ("GB300", 2500, 8000), ("B300", 2250, 8000), ("MI300X", 1307.4, 5300),
    ],
)  # fmt: skip
def test_datasheet_rates(name: str, bf16_tflops: float, memory_gb_per_s: float) -> None:
    gpu = gpu_by_name(name)
    assert gpu.bf16_flops_per_s == pytest.approx(bf16_tflops * 1e12)
    assert gpu.memory_bytes_per_s == pytest.approx(memory_gb_per_s * 1e9)


def test_types_without_a_unit_have_the_rate_of_what_computes_them() -> None:
    a100, h100, v100 = (gpu_by_name(name) for name in ("a100", "h100", "v100"))
    assert a100.fp8_flops_per_s == a100.fp32_flops_per_s
    assert h100.fp4_flops_per_s == h100.bf16_flops_per_s
    assert v100.bf16_flops_per_s == v100.tf32_flops_per_s == v100.fp32_flops_per_s


def test_prices_and_the_virtual_device_have_the_same_figures() -> None:
    config = pytest.importorskip("phantom.serve.config")
    cluster = pytest.importorskip("netsim.cluster")
    for name in cluster.list_presets():
        spec = cluster.load_cluster(name)
        priced, device = config.kernel_gpu(spec), config.device_properties(spec.gpu)
        assert priced.sm_count == device["multi_processor_count"], name
        assert priced.l2_bytes == device["l2_cache_bytes"], name
        assert priced.memory_bytes == device["total_memory"], name
        assert priced.memory_bytes_per_s == spec.gpu.memory_bandwidth_bytes_per_s, name
