"""The one interface to kernel costs: store, then measurement, then prediction."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgpack

from phantom.kernels.cost import Cost
from phantom.kernels.gpu import GpuSpec, gpu_by_name
from phantom.kernels.key import cost_key
from phantom.kernels.measure.kernel_store import KernelStore, StoreError, default_path
from phantom.kernels.measure.measured_costs import StoreAndDevice
from phantom.kernels.predict.constants import Constants
from phantom.kernels.predict.ideal import ideal_ps
from phantom.kernels.predict.operator_classes import class_of
from phantom.kernels.predict.predictor import Predictor
from phantom.kernels.predict.rules import library_rules
from phantom.kernels.request.description import (
    KernelDescription,
    KernelFormatError,
    encode_kernel,
    parse_kernel,
)

MODES = ("auto", "store", "measure", "predict")
_PRICED_NAMESPACES = ("aten", "prims", "triton", library_rules.NAMESPACE)

_MAX_ELEMENTS = 200_000


def _elements(request: bytes) -> list[bytes]:
    """Split a msgpack array into the bytes of its elements.  Raises KernelFormatError if it is none."""
    try:
        unpacker = msgpack.Unpacker(max_buffer_size=len(request) or 1)
        unpacker.feed(request)
        count = unpacker.read_array_header()
        bounds = [unpacker.tell()]
        for _ in range(count):
            unpacker.skip()
            bounds.append(unpacker.tell())
    except (ValueError, msgpack.UnpackException) as error:
        raise KernelFormatError(f"a cost request is a msgpack list of kernels: {error}") from None
    return [request[start:end] for start, end in pairwise(bounds)]


class MeasuredCosts(Protocol):
    """Where measured durations come from: see :mod:`phantom.kernels.measure.measured_costs`."""

    def lookup(self, kernel: KernelDescription, key: str) -> float | None:
        """Return the stored seconds, or None."""
        ...

    def measure(self, kernel: KernelDescription, key: str) -> float | None:
        """Measure now, store, and return seconds; None with the reason kept if it cannot be measured."""
        ...


class CostModel:
    """Prices kernels for one device.

    *gpu* is a GpuSpec or a name; *store* a KernelStore or a path to one (default: the user's store); *mode*
    says
    where costs may come from: ``auto`` (store, measurement if a device of that name is here, prediction),
    ``store`` (a kernel that
    the store lacks is unpriced), ``measure`` (store, measurement on the device here, prediction where that
    cannot be), or ``predict``.
    *threads* is the number of CPU
    threads of a rank, for a CPU.  Safe to call from several threads; one key is measured once.  Raises
    ValueError for an unknown mode,
    UnknownGpuError.
    """

    def __init__(
        self,
        gpu: GpuSpec | str,
        *,
        store: KernelStore | Path | str | None = None,
        mode: str = "auto",
        constants: Constants | None = None,
        measured: MeasuredCosts | None = None,
        threads: int = 1,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: want one of {', '.join(MODES)}")
        self.gpu = gpu_by_name(gpu) if isinstance(gpu, str) else gpu
        self.mode = mode
        self.unpriced: Counter[str] = Counter()
        """Kernels that could not be priced, by operator."""
        self._predictor = Predictor(self.gpu, constants=constants)
        self._measured = measured if measured is not None else self._open_source(store, threads)
        self._lock = threading.Lock()
        self._requests: dict[str, KernelDescription] = {}
        self._by_element: dict[bytes, Cost] = {}
        self._reasons: dict[str, str] = {}
        self._known: dict[str, Future[Cost]] = {}

    def _open_source(self, store: KernelStore | Path | str | None, threads: int) -> MeasuredCosts | None:
        """Open the store and find the device here, as far as the mode wants either."""
        if self.mode == "predict":
            return None
        if isinstance(store, (str, Path)):
            if self.mode == "store" and not Path(store).exists():
                raise StoreError(f"{store}: no such kernel store")
            store = Path(store)
        wanted = store if store is not None else default_path()
        return StoreAndDevice(
            self.gpu, store=wanted, threads=threads, measure=self.mode in ("auto", "measure")
        )

    @property
    def failures(self) -> Mapping[str, str]:
        """Why kernels could not be measured or predicted, by key."""
        return {**getattr(self._measured, "failures", {}), **self._reasons}

    def close(self) -> None:
        """End the measuring process, if there is one."""
        if isinstance(self._measured, StoreAndDevice):
            self._measured.close()

    def cost(self, kernel: KernelDescription) -> Cost:
        """Return the cost of *kernel*; every answer for one key is the same for the life of this model."""
        key = cost_key(kernel)
        with self._lock:
            future = self._known.get(key)
            mine = future is None
            if future is None:
                future = self._known[key] = Future()
            self._requests.setdefault(key, kernel)
        if mine:
            try:
                future.set_result(self._price(kernel, key))
            except BaseException as error:
                with self._lock:
                    del self._known[key]
                future.set_exception(error)
                raise
        cost = future.result()
        if cost.source == "unpriced":
            with self._lock:
                self.unpriced[kernel.op] += 1
        return cost

    def cost_batch(self, request: bytes) -> bytes:
        """Answer a cost request in wire form (msgpack in, msgpack out).  Raises KernelFormatError.

        Ranks ask for the same kernels: an element that was asked for before is answered by its bytes alone.
        """
        answers = [self._wire_cost(element).wire() for element in _elements(request)]
        answer: bytes = msgpack.packb(answers)
        return answer

    def _wire_cost(self, element: bytes) -> Cost:
        known = self._by_element.get(element)
        if known is None:
            known = self.cost(parse_kernel(msgpack.unpackb(element, raw=False, strict_map_key=False)))
            # An unpriced kernel is counted each time, under its name.
            if known.source != "unpriced" and len(self._by_element) < _MAX_ELEMENTS:
                self._by_element[element] = known
        return known

    def costs(self, kernels: Sequence[KernelDescription]) -> list[Cost]:
        """Return the costs of *kernels*, in order."""
        return [self.cost(kernel) for kernel in kernels]

    def requests(self) -> dict[str, KernelDescription]:
        """Return one kernel for every key asked so far, which can be measured elsewhere."""
        with self._lock:
            return dict(self._requests)

    def begin_job(self, *, ranks_per_server: int) -> None:
        """Start the list of :meth:`requests` anew; where the device is a CPU, its ranks share it."""
        shared_anew = isinstance(self._measured, StoreAndDevice) and self._measured.share_between(
            ranks_per_server
        )
        with self._lock:
            self._requests.clear()
            self._by_element.clear()
            if shared_anew:
                self._known.clear()

    def save_requests(self, path: Path | str) -> int:
        """Write one kernel per key as JSON lines, for ``phantom kernels measure``; return how many."""
        requests = self.requests()
        lines = [json.dumps(encode_kernel(requests[key])) for key in sorted(requests)]
        Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return len(lines)

    def _price(self, kernel: KernelDescription, key: str) -> Cost:
        klass = class_of(kernel)
        source = "predicted"
        try:
            estimate = self._predictor.estimate(kernel)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Arguments that the operator's rule does not expect: priced by bytes, and counted as unpriced.
            estimate = self._predictor.bytes_estimate(kernel)
            source = "unpriced"
            self._reasons[key] = f"{type(error).__name__}: {error}"
        if estimate is None:
            return Cost(0, "none", klass, 0, 0)
        seconds = estimate.seconds
        stored = self._from_measurements(kernel, key)
        if stored is not None:
            seconds, source = stored, "measured"
        elif self.mode == "store" or kernel.namespace not in _PRICED_NAMESPACES:
            source = "unpriced"
        # A kernel takes time: at least one picosecond, so that no cost is zero but that of no kernel.
        return Cost(
            max(1, round(seconds * 1e12)),
            source,
            klass,
            1 if self.gpu.is_cpu else max(estimate.launches, 1),
            estimate.scratch_bytes,
            ideal_ps(kernel, self.gpu),
        )

    def _from_measurements(self, kernel: KernelDescription, key: str) -> float | None:
        if self._measured is None or self.mode == "predict":
            return None
        found = self._measured.lookup(kernel, key)
        # A compiled Triton kernel is a binary of the rank's: there is nothing here to run.
        if found is None and self.mode in ("auto", "measure") and kernel.namespace != "triton":
            found = self._measured.measure(kernel, key)
        return found
