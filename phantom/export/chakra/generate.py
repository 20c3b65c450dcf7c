"""Regenerates execution_trace_pb2.py: `python -m phantom.export.chakra.generate`, then commit."""

from __future__ import annotations

from pathlib import Path

from phantom.wire.generate import relax


def main() -> None:
    """Runs protoc (grpcio-tools) in this folder. Raises RuntimeError if it fails."""
    from grpc_tools import protoc  # a build tool, absent at run time

    here = Path(__file__).parent
    root = here.parents[2]
    outputs = [f"--{kind}_out={root}" for kind in ("python", "pyi")]
    status = protoc.main(["", f"-I{root}", *outputs, str(here / "execution_trace.proto")])
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    path = here / "execution_trace_pb2.py"
    path.write_text(relax(path.read_text()))


if __name__ == "__main__":
    main()
