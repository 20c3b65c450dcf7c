"""Writes what is generated: the records for C++, their page in the docs, and the gRPC service's modules.

Run `python -m phantom.wire.generate` after a change of schema.py or simulator.proto (needs grpcio-tools), and
commit the result.
"""

from __future__ import annotations

import re
from pathlib import Path

from phantom.wire import cpp, page

ROOT = Path(__file__).parent.parent.parent
GENERATED = {cpp.HEADER: cpp.generate, page.PAGE: page.generate}
"""Files made from schema.py, below the repository's root."""


def relax(source: str) -> str:
    """Returns generated source with package-relative imports and without the generator's version checks.

    The checks refuse any runtime older than the generator, although these few messages use nothing newer than
    protobuf 4 and grpcio 1.63; a training environment keeps its own protobuf, so they are taken out.
    """
    source = re.sub(
        r"^from phantom\.wire import simulator_pb2", "from . import simulator_pb2", source, flags=re.M
    )
    source = re.sub(r"^from google\.protobuf import runtime_version.*\n", "", source, flags=re.M)
    source = re.sub(r"^_runtime_version\.Validate[^(]*\([^)]*\)\n", "", source, flags=re.M)
    source = re.sub(r"^GRPC_GENERATED_VERSION.*?^    \)\n\n", "", source, flags=re.M | re.S)
    return source


def write_records() -> None:
    """Writes the files that schema.py decides."""
    for name, generate in GENERATED.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = generate()
        if not path.exists() or path.read_text() != text:  # an untouched header compiles nothing again
            path.write_text(text)


def write_service() -> None:
    """Runs protoc in this folder and rewrites its output in place. Raises RuntimeError if protoc fails."""
    from grpc_tools import protoc  # a build tool, absent at run time

    here = Path(__file__).parent
    # Compiled from the repository's root, so that the descriptor's name cannot collide with another's.
    outputs = [f"--{kind}_out={ROOT}" for kind in ("python", "pyi", "grpc_python")]
    status = protoc.main(["", f"-I{ROOT}", *outputs, str(here / "simulator.proto")])
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    for name in ("simulator_pb2.py", "simulator_pb2_grpc.py"):
        path = here / name
        path.write_text(relax(path.read_text()))


if __name__ == "__main__":
    write_records()
    write_service()
