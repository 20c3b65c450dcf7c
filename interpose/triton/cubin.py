"""Registers, stack and shared memory of a kernel, read from the cubin that ptxas made.

A cubin is an ELF file; its section `.nv.info` lists attributes as (format, number, size, payload). The
numbers are those that `cuobjdump --dump-resource-usage` and `readelf` of CUDA's binary utilities print:
0x2f EIATTR_REGCOUNT, 0x11 EIATTR_FRAME_SIZE.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_REGISTERS = 0x2F
_FRAME = 0x11
_SIZED = 4  # EIFMT_SVAL: a payload of `size` bytes follows
REGISTERS_PER_MULTIPROCESSOR = 65536
WARP = 32


class UnreadableCubin(ValueError):
    """The bytes are not the cubin of a kernel; the text says what is missing."""


@dataclass(frozen=True)
class Resources:
    """What a kernel holds per thread: registers, and bytes of stack (spilled registers, local arrays)."""

    registers: int
    stack_bytes: int

    @property
    def largest_block(self) -> int:
        """Threads of the largest block that the registers allow (cuFuncGetAttribute MAX_THREADS_PER_BLOCK).

        Registers are given to warps in units of 256 (CUDA C++ Programming Guide, "Compute Capabilities").
        """
        per_warp = -(-max(self.registers, 1) * WARP // 256) * 256
        return min(1024, REGISTERS_PER_MULTIPROCESSOR // per_warp * WARP)


def _sections(cubin: bytes) -> dict[str, tuple[int, int]]:
    if cubin[:4] != b"\x7fELF":
        raise UnreadableCubin("no ELF header")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * entry_bytes) for i in range(count)]
    text = headers[names][4]

    def name_of(offset: int) -> str:
        return cubin[text + offset : cubin.index(b"\0", text + offset)].decode()

    return {name_of(header[0]): (header[4], header[5]) for header in headers}


def _symbols(cubin: bytes, sections: dict[str, tuple[int, int]]) -> list[str]:
    start, size = sections[".symtab"]
    text, _ = sections[".strtab"]
    names = []
    for at in range(start, start + size, 24):
        (offset,) = struct.unpack_from("<I", cubin, at)
        names.append(cubin[text + offset : cubin.index(b"\0", text + offset)].decode())
    return names


def read_resources(cubin: bytes, kernel: str) -> Resources:
    """Reads what `kernel` holds. Raises UnreadableCubin."""
    try:
        sections = _sections(cubin)
        symbols = _symbols(cubin, sections)
        position, size = sections[".nv.info"]
        end, found = position + size, {}
        while position < end:
            form, attribute, payload = struct.unpack_from("<BBH", cubin, position)
            position += 4
            if form == _SIZED:
                if attribute in (_REGISTERS, _FRAME):
                    symbol, value = struct.unpack_from("<II", cubin, position)
                    if symbols[symbol] == kernel:
                        found[attribute] = value
                position += payload
        return Resources(found[_REGISTERS], found.get(_FRAME, 0))
    except (KeyError, IndexError, ValueError, struct.error) as error:
        raise UnreadableCubin(f"cubin of {kernel}: {type(error).__name__} {error}") from None
