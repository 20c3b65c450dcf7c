"""Numbers with units that suit their size."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """A duration, e.g. "412.3 ms"; "-" for None."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e9:.3g} ns" if value else "0 s"


def size(value: float | None) -> str:
    """A size in binary units, e.g. "12.50 GiB"; "-" for None."""
    if value is None:
        return "-"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{int(value)} B"


def rate(value: float | None) -> str:
    """A bandwidth in decimal units, as links are sold, e.g. "450.0 GB/s"; "-" for None."""
    if value is None:
        return "-"
    for unit, scale in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B/s"


def share(value: float | None) -> str:
    """A share as per cent with one decimal; small ones are not shown as zero."""
    if value is None:
        return "-"
    if value == 0:
        return "0%"
    return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"


def count(value: float | None) -> str:
    """A number with thousands separators."""
    return "-" if value is None else f"{value:,.0f}"


def many(number: int, what: str) -> str:
    """A number of things, e.g. "1 node", "8 GPUs"."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"
