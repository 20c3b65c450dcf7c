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
