"""A compiled Triton kernel: what of it a cost needs, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interpose.triton.cubin import Resources, UnreadableCubin, read_resources
from interpose.triton.ir import Function, UnreadableIr, read_functions


@dataclass(frozen=True)
class Parameter:
    """One argument of the launch: its place among the launch's arguments and its Triton type.

    `positions` are the places of what it becomes in the IR: one, or a descriptor's base, sizes and strides.
    """

    index: int
    kind: str
    positions: tuple[int, ...]

    @property
    def is_pointer(self) -> bool:
        """Whether a tensor (or a descriptor of one) is passed."""
        return self.kind.startswith(("*", "tensordesc", "nvTmaDesc"))


@dataclass
class Kernel:
    """Name, geometry and IR of a compiled kernel. `problem` says why there is no IR to count in."""

    name: str
    warps: int
    stages: int
    blocks_per_cluster: int
    shared_bytes: int
    parameters: tuple[Parameter, ...]
    functions: dict[str, Function] = field(default_factory=dict, repr=False)
    resources: Resources = field(default_factory=lambda: Resources(32, 0))
    written: frozenset[int] = frozenset()
    problem: str | None = None


def _flat(signature: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for kind in signature:
        if isinstance(kind, (tuple, list)):
            flat.extend(_flat(kind))
        else:
            flat.append(kind)
    return flat


def _descriptor_rank(kind: str) -> int:
    return kind[kind.find("[") : kind.find("]")].count(",") + 1


def parameters_of(signature: Sequence[Any]) -> tuple[Parameter, ...]:
    """Parameters of a launch whose arguments have these types, tuples flattened; constants are none.

    A tensor descriptor becomes itself, its sizes and its strides in the IR (triton.backends.driver,
    expand_signature).
    """
    found, position = [], 0
    for index, kind in enumerate(_flat(signature)):
        if kind == "constexpr":
            continue
        width = 1 + 2 * _descriptor_rank(kind) if kind.startswith("tensordesc") else 1
        found.append(Parameter(index, kind, tuple(range(position, position + width))))
        position += width
    return tuple(found)


def flat_arguments(arguments: Sequence[Any]) -> Sequence[Any]:
    """The launch's arguments with tuples opened, as `parameters_of` counts them."""
    if not any(isinstance(argument, (tuple, list)) for argument in arguments):
        return arguments
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, (tuple, list)):
            flat.extend(flat_arguments(argument))
        else:
            flat.append(argument)
    return flat


def _files(name: str, digest: str) -> dict[str, Path]:
    """What Triton keeps of a compilation, by suffix."""
    from triton.runtime.cache import get_cache_manager

    group = get_cache_manager(digest).get_group(f"{name[:150]}.json") or {}
    return {Path(path).suffix: Path(path) for path in group.values()}


def load_kernel(signature: Sequence[Any], metadata: Any) -> Kernel:
    """Describes the kernel of a compilation's `metadata`; IR that cannot be read is the kernel's problem."""
    from interpose.triton.footprint import written_arguments

    kernel = Kernel(
        name=metadata.name,
        warps=metadata.num_warps,
        stages=getattr(metadata, "num_stages", 1),
        blocks_per_cluster=getattr(metadata, "num_ctas", 1),
        shared_bytes=metadata.shared,
        parameters=parameters_of(signature),
    )
    pointers = frozenset(p.index for p in kernel.parameters if p.is_pointer)
    files = _files(metadata.name, metadata.hash)
    try:
        if ".ttir" not in files:
            raise UnreadableIr(
                "Triton kept no .ttir (TRITON_STORE_BINARY_ONLY is set, or it is no Triton program)"
            )
        if ".cubin" in files:
            kernel.resources = read_resources(files[".cubin"].read_bytes(), metadata.name)
        kernel.functions = read_functions(files[".ttir"].read_text())
        positions = written_arguments(kernel.functions, metadata.name)
        kernel.written = frozenset(p.index for p in kernel.parameters if positions & set(p.positions))
    except (UnreadableIr, UnreadableCubin, OSError) as error:
        kernel.problem = f"the IR of {metadata.name} could not be read: {error}"
        kernel.written = pointers
    return kernel
