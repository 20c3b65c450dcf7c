"""Operations of Triton IR that read or write memory."""

from __future__ import annotations

from interpose.triton.ir import Operation, Type
from interpose.triton.tracer import Tracer
from interpose.triton.values import Value, sector_bytes, unknown


class MemoryOperations(Tracer):
    """Loads, stores, atomics and descriptors: bytes by argument."""

    def _access(self, address: Value, mask: Value | None) -> tuple[float, float]:
        used, sectors = sector_bytes(address.data, mask.data if mask is not None else None, address.type)
        times = self._weight
        return used * times, sectors * times

    def _op_tt_load(self, operation: Operation, operands: list[Value]) -> list[Value]:
        address = operands[0]
        mask = operands[1] if len(operands) > 1 else None
        kind = Type(address.type.element, address.type.shape)
        if address.base is not None:
            used, sectors = self._access(address, mask)
            access = self._counts.accesses[address.base]
            access.read_bytes += used
            access.read_sector_bytes += sectors
            self._loads = True
            if not address.type.shape and not kind.is_float:
                self._counts.counted_arguments.add(address.base)
                return [Value(kind, self._count_of(address.base))]
        return [unknown(kind)]

    def _op_tt_store(self, operation: Operation, operands: list[Value]) -> list[Value]:
        address = operands[0]
        if address.base is not None:
            used, sectors = self._access(address, operands[2] if len(operands) > 2 else None)
            access = self._counts.accesses[address.base]
            access.written_bytes += used
            access.written_sector_bytes += sectors
            self.stored.add(address.base)
        return []

    def _op_tt_atomic_rmw(self, operation: Operation, operands: list[Value]) -> list[Value]:
        address = operands[0]
        if address.base is not None:
            used, _ = self._access(
                address, operands[2] if len(operands) > 2 and operation.name == "tt.atomic_rmw" else None
            )
            self._counts.accesses[address.base].atomic_bytes += used
            self.stored.add(address.base)
        return [unknown(Type(address.type.element, address.type.shape))]

    _op_tt_atomic_cas = _op_tt_atomic_rmw

    def _tile(self, operation: Operation, address: Value, kind: Type) -> tuple[float, float]:
        return self._access(Value(Type(kind.element, kind.shape, True), None, address.base), None)

    def _op_tt_descriptor_load(self, operation: Operation, operands: list[Value]) -> list[Value]:
        kind = operation.types[-1]
        if operands[0].base is not None:
            used, sectors = self._tile(operation, operands[0], kind)
            self._counts.accesses[operands[0].base].read_bytes += used
            self._counts.accesses[operands[0].base].read_sector_bytes += sectors
            self._loads = True
        return [unknown(kind)]

    _op_tt_descriptor_gather = _op_tt_descriptor_load
    _op_tt_experimental_descriptor_load = _op_tt_descriptor_load

    def _op_tt_descriptor_store(self, operation: Operation, operands: list[Value]) -> list[Value]:
        source = next((v for v in operands[1:] if v.type.shape), operands[-1])
        if operands[0].base is not None:
            used, sectors = self._tile(operation, operands[0], source.type)
            access = self._counts.accesses[operands[0].base]
            if "reduce" in operation.name:
                access.atomic_bytes += used
            else:
                access.written_bytes += used
                access.written_sector_bytes += sectors
            self.stored.add(operands[0].base)
        return []

    _op_tt_descriptor_reduce = _op_tt_descriptor_store
    _op_tt_descriptor_scatter = _op_tt_descriptor_store
    _op_tt_experimental_descriptor_store = _op_tt_descriptor_store
