"""Libraries and programs of CUDA that are not there are named under the traceback, with the remedy."""

from __future__ import annotations

import pytest

from interpose.frameworks.missing_libraries import explanation


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ImportError("libcublasLt.so.12: cannot open", name="some_kernels"),
            "module 'some_kernels' is a compiled",
        ),
        (
            OSError("libcudart.so.12: cannot open shared object file"),
            "the script loads libcudart.so.12 itself",
        ),
        (OSError("libnccl.so.2: cannot open shared object file"), "libnccl.so.2"),
        (OSError("Could not find any NVRTC library"), "NVRTC library"),
        (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "'cupy' launches kernels past PyTorch"),
        (ModuleNotFoundError("No module named 'pynvml'", name="pynvml"), "'pynvml' asks NVIDIA's driver"),
        (FileNotFoundError(2, "No such file", "nsys"), "nsys does not exist on a simulated machine"),
    ],
)
def test_what_cuda_lacks_is_named_with_the_remedy(error: Exception, words: str) -> None:
    outer = RuntimeError("could not start")
    outer.__cause__ = error
    text = explanation(outer)
    assert text is not None
    assert words in text
    assert "Remedy:" in text


@pytest.mark.parametrize(
    "error",
    [
        ImportError("No module named 'numpyy'", name="numpyy"),
        OSError("libcurl.so.4: cannot open shared object file"),
        FileNotFoundError(2, "No such file", "train.json"),
        RuntimeError("libcudart.so.12 is mentioned in a message"),
    ],
)
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert explanation(error) is None
