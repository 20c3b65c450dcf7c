"""Measured costs for a cost model: what the store has, and what the device here can add to it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from phantom.kernels.gpu import GpuSpec
from phantom.kernels.measure.kernel_store import KernelStore
from phantom.kernels.measure.local_device import LocalDevice, local_device, shared_cpu_name
from phantom.kernels.measure.measurer import MeasurementFailed, Measurer
from phantom.kernels.predict.operator_classes import class_of
from phantom.kernels.request.description import KernelDescription

_ON_DEMAND_BUDGET_S = 0.1
"""A job waits for these measurements; ``phantom kernels measure`` takes more time for each."""


class StoreAndDevice:
    """Looks kernels up in *store* and measures the missing ones if a device of *gpu*'s name is here.

    *store* is an open store, the path of one (created when there is something to keep) or None.  Every
    failure is kept with
    its reason in ``failures`` (by key) and not tried again.  Raises StoreError for a store that cannot be
    used.
    """

    def __init__(
        self, gpu: GpuSpec, *, store: KernelStore | Path | None, threads: int = 1, measure: bool = True
    ) -> None:
        self._gpu = gpu
        self._path = store if isinstance(store, Path) else None
        self._store = store if isinstance(store, KernelStore) else None
        if self._path is not None and self._path.exists():
            self._store = KernelStore(self._path)
        self._threads = threads if gpu.is_cpu else 0
        self._processes = 1
        self._may_measure = measure
        self._lock = threading.Lock()
        self._measurer: Measurer | None = None
        self._searched = False
        self.failures: dict[str, str] = {}

    @property
    def device_name(self) -> str:
        """The name under which this device's measurements are stored."""
        return shared_cpu_name(self._processes) if self._gpu.is_cpu else self._gpu.name

    def share_between(self, ranks: int) -> bool:
        """Say how many ranks of the job have this device, which counts for a CPU; returns whether that is
        new.

        Kernels are then measured while others run the same on other cores, as ranks do that share caches and
        memory.  More ranks than cores are taken for as many as there are cores.
        """
        processes = max(1, min(ranks, os.cpu_count() or 1)) if self._gpu.is_cpu else 1
        if processes == self._processes:
            return False
        self.close()
        with self._lock:
            self._processes = processes
            self._measurer, self._searched = None, False
        self.failures.clear()
        return True

    def lookup(self, kernel: KernelDescription, key: str) -> float | None:
        """Return the stored seconds of *key*, or None."""
        if self._store is None:
            return None
        device = self._measurer.device if self._measurer is not None else None
        version = device.torch if device is not None else None
        found = self._store.find(key, self.device_name, threads=self._threads, torch=version)
        return found.median_s if found is not None else None

    def measure(self, kernel: KernelDescription, key: str) -> float | None:
        """Measure and store; None if that cannot be, with the reason in ``failures``."""
        if not self._may_measure or key in self.failures:
            return None
        measurer = self._find_measurer()
        if measurer is None:
            return None
        if class_of(kernel) == "copy" and _between_host_and_device(kernel):
            self.failures[key] = "a copy between host and device: priced by the link"
            return None
        try:
            with measurer.exclusive():
                # Another simulator on this machine may have measured it while this one waited.
                found = self.lookup(kernel, key)
                if found is not None:
                    return found
                measurement = measurer.measure(kernel, key)
        except MeasurementFailed as error:
            self.failures[key] = str(error)
            return None
        if self._store is None and self._path is not None:
            self._store = KernelStore(self._path)
        if self._store is not None:
            self._store.add(measurement)
        return measurement.median_s

    def close(self) -> None:
        """End the measuring process, if one was started."""
        if self._measurer is not None:
            self._measurer.close()

    def _find_measurer(self) -> Measurer | None:
        with self._lock:
            if not self._searched:
                self._searched = True
                device: LocalDevice | None = local_device(
                    self._gpu, threads=max(self._threads, 1), processes=self._processes
                )
                if device is not None:
                    path = self._store.path if self._store is not None else self._path
                    lock = path.with_suffix(".measuring") if path is not None else None
                    self._measurer = Measurer(device, budget_s=_ON_DEMAND_BUDGET_S, lock_path=lock)
            return self._measurer


def _between_host_and_device(kernel: KernelDescription) -> bool:
    return len({tensor.device for tensor in kernel.in_tensors + kernel.out_tensors}) > 1
