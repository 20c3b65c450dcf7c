"""What Triton calls to launch a kernel: prices the launch once and puts it on the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interpose.extension_protocol import Extension
from interpose.triton.kernel import Kernel, flat_arguments, load_kernel
from interpose.triton.request import describe, tensor_of


class CountGuess:
    """Integers that a kernel reads to know how often it loops: their mean over the tensor.

    Where the tensor's values are not known but another integer argument has one more dimension
    (FlexAttention: counts of blocks beside lists of blocks), the counts are taken as in a causal mask: half
    of that dimension.
    """

    def __init__(self, extension: Extension, kernel: Kernel, arguments: Sequence[Any]) -> None:
        self._extension = extension
        self._kernel = kernel
        self._arguments = arguments
        self.guessed = False

    def __call__(self, index: int) -> float | None:
        """The mean of argument `index`; None if nothing tells."""
        tensor = tensor_of(self._arguments[index])
        if tensor is None:
            return None
        value = self._extension.known_value(tensor)
        if value is not None and value.numel():
            return float(value.double().mean())
        for parameter in self._kernel.parameters:
            other = tensor_of(self._arguments[parameter.index]) if parameter.is_pointer else None
            if other is None or other.dtype != tensor.dtype or other.dim() != tensor.dim() + 1:
                continue
            if other.shape[:-1] == tensor.shape:
                self.guessed = True
                return (other.shape[-1] + 1) / 2
        return None


class Launcher:
    """Counterpart of triton.backends.nvidia.driver.CudaLauncher, one per compiled kernel.

    Called with grid, stream, function and the launch's arguments, constants included. Raises ValueError for a
    tensor of the CPU, as the real launcher does.
    """

    def __init__(self, extension: Extension, source: Any, metadata: Any) -> None:
        self._extension = extension
        self.kernel = load_kernel(list(source.signature.values()), metadata)
        self._pointers = tuple(p.index for p in self.kernel.parameters if p.is_pointer)
        self._scalars = tuple(
            p.index for p in self.kernel.parameters if not p.is_pointer and not p.kind.startswith(("f", "b"))
        )
        self._prices: dict[Any, tuple[int, frozenset[int]]] = {}
        self._current_device = extension.current_device
        self._launch = extension.launch_library_kernel

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: int,
        kernel_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *arguments: Any,
    ) -> None:
        """Puts one launch on `stream` of the current device."""
        if grid_x * grid_y * grid_z <= 0:
            return
        given = flat_arguments(arguments)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        key: list[Any] = [grid_x, grid_y, grid_z]
        key.extend([given[i] for i in self._scalars])
        written = []
        for i in self._pointers:
            tensor = tensor_of(given[i])
            if tensor is None:
                key.append(None)
                continue
            key.append(tensor.shape)
            key.append(tensor.stride())
            if i in self.kernel.written:
                written.append(tensor)
        place = tuple(key)
        price = self._prices.get(place)
        if price is None or price[1]:
            price = self._price(place, (grid_x, grid_y, grid_z), given, price)
        device = self._current_device()
        while not self._launch(price[0], device, stream, written):
            self._prices.clear()
            price = self._price(place, (grid_x, grid_y, grid_z), given, None)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _price(
        self,
        place: Any,
        grid: tuple[int, int, int],
        given: Sequence[Any],
        known: tuple[int, frozenset[int]] | None,
    ) -> tuple[int, frozenset[int]]:
        counts = CountGuess(self._extension, self.kernel, given)
        full = place
        if known is not None:
            # What it does depends on integers in its tensors, which may have changed.
            full = (place, *(counts(i) for i in sorted(known[1])))
            price = self._prices.get(full)
            if price is not None:
                return price
        self._check(given)
        request, counted = describe(self.kernel, grid, given, counts)
        price = (self._extension.price_library_kernel(f"triton::{self.kernel.name}", request), counted)
        self._prices[place] = price
        if counted:
            self._prices[(place, *(counts(i) for i in sorted(counted)))] = price
        return price

    def _check(self, given: Sequence[Any]) -> None:
        for parameter in self.kernel.parameters:
            tensor = tensor_of(given[parameter.index]) if parameter.is_pointer else None
            if (
                tensor is not None
                and tensor.device.type != "cuda"
                and not (tensor.device.type == "cpu" and tensor.is_pinned())
            ):
                raise ValueError(
                    f"Pointer argument (at {parameter.index}) cannot be accessed from Triton (cpu tensor?)"
                )
