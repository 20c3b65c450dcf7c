"""Puts the simulated GPU in Triton's and Inductor's places for one, as those modules are imported."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from interpose.after_import import after_import
from interpose.extension_protocol import Extension
from interpose.triton import caches, shared_graphs

TRITON_VERSIONS = {"2.13": "triton==3.9.0", "2.14": "'triton~=3.8.0'"}


def install(extension: Extension) -> None:
    """Arranges for everything below to happen when the job imports it; imports nothing itself."""
    import torch._C as torch_c

    # CPU builds lack it; Inductor's generated code allocates with it.
    torch_c._dynamo.guards._empty_strided_cuda = extension.empty_strided_cuda  # type: ignore[attr-defined]
    after_import("triton.backends", lambda module: _register_driver(module, extension))
    after_import("triton.compiler.compiler", caches.compile_once)
    after_import("torch._inductor.config", _configure_inductor)
    after_import("torch._inductor.runtime.benchmarking", lambda module: _answer_benchmarks(module, extension))
    after_import("torch._inductor.runtime.triton_heuristics", _tune_on_the_arguments)
    after_import("torch._inductor.select_algorithm", lambda module: _tune_off_clock(module, extension))
    after_import("torch._inductor.exc", _name_the_remedy)
    share_graphs()


def share_graphs() -> None:
    """Arranges for ranks to share compiled graphs (shared_graphs.py)."""
    after_import("torch._inductor.codecache", shared_graphs.share_inductor_graphs)
    after_import("torch._inductor.compile_fx", shared_graphs.end_locks_after("_compile_fx_inner"))
    after_import("torch._functorch._aot_autograd.autograd_cache", shared_graphs.share_autograd_graphs)
    after_import("torch._functorch.aot_autograd", shared_graphs.end_locks_after("aot_module_simplified"))


def _register_driver(module: ModuleType, extension: Extension) -> None:
    """Registers the driver in triton.backends, before triton.runtime looks for the active one."""
    from interpose.triton.driver import driver_class

    registered: dict[str, Any] = module.backends
    nvidia = registered.get("nvidia")
    if nvidia is None:
        raise RuntimeError(
            "phantom: this Triton has no NVIDIA backend (triton.backends lists "
            f"{', '.join(registered) or 'none'}); install Triton from PyPI: pip install {remedy()}"
        )
    registered["nvidia"] = type(nvidia)(nvidia.compiler, driver_class(extension, nvidia.driver))


def _configure_inductor(config: Any) -> None:
    """Inductor's settings that a simulated GPU decides.

    The static launcher takes a kernel past Triton's driver to libcuda. Compile workers are processes: with
    all ranks on one machine, a set per rank is too many, so a rank compiles by itself unless asked otherwise.

    Defaults are changed, since a setting holds for the thread that makes it and a backward graph may be
    compiled in an autograd thread (Megatron's fused functions are).
    """
    config._config["use_static_cuda_launcher"].default = False
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        config._config["compile_threads"].default = 1


def _answer_benchmarks(module: ModuleType, extension: Extension) -> None:
    from interpose.triton.benchmark import inductor_benchmarker

    module.benchmarker = inductor_benchmarker(extension, module.TritonBenchmarker)  # type: ignore[attr-defined]


def _tune_on_the_arguments(module: ModuleType) -> None:
    """Candidates get the kernel's own arguments: none runs, so that no copy has to keep them as they were.

    Inductor would clone what a kernel changes, or keep it on the host where clones would raise the peak.
    """
    autotuner: Any = module.CachingAutotuner  # type: ignore[attr-defined]

    def copy_args_to_cpu_if_needed(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def maybe_clone_args(
        self: Any, exclude: Any, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        return list(args), kwargs

    autotuner.copy_args_to_cpu_if_needed = copy_args_to_cpu_if_needed
    autotuner.maybe_clone_args = maybe_clone_args


def _tune_off_clock(module: ModuleType, extension: Extension) -> None:
    """What max-autotune makes to time candidates with (inputs, clones) takes no virtual time either."""
    selector: Any = module.AlgorithmSelectorCache  # type: ignore[attr-defined]
    original = selector.do_autotuning

    def do_autotuning(self: Any, *args: Any, **kwargs: Any) -> Any:
        before_ps = extension.off_clock_begin()
        try:
            return original(self, *args, **kwargs)
        finally:
            extension.off_clock_end(before_ps)

    selector.do_autotuning = do_autotuning


def remedy() -> str:
    """The requirement to install for the torch that is running."""
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    return TRITON_VERSIONS.get(release, "triton")


def _name_the_remedy(module: ModuleType) -> None:
    """PyTorch says that Triton is missing; this adds what to type."""
    missing: Any = module.TritonMissing  # type: ignore[attr-defined]
    original = missing.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        text = f"{self.args[0]}\nphantom: torch.compile needs Triton, which PyTorch's CPU build lacks"
        self.args = (f"{text}: {sys.executable} -m pip install {remedy()}", *self.args[1:])

    missing.__init__ = __init__
