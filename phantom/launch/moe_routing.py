"""`--moe-routing`: how the routers of mixtures of experts share out their tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from netsim.outside import OutsideError, parse_csv, parse_json, read_text
from phantom.launch.errors import UsageError
from phantom.results.run_summary import Summary

BALANCED, ZIPF, SHARES = "balanced", "zipf", "shares"
_FORMS = "give balanced, zipf:ALPHA or a JSON or CSV file of expert shares"


@dataclass(frozen=True, kw_only=True)
class MoeRouting:
    """What the ranks are told. `layers`: shares of the experts, one list for all layers or one for each."""

    mode: str = BALANCED
    alpha: float = 0.0
    layers: tuple[tuple[float, ...], ...] = field(default=())
    source: str = ""

    def message(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "alpha": self.alpha,
            "layers": [list(row) for row in self.layers],
            "source": self.source,
        }

    def note(self, summary: Summary, text: str) -> Summary:
        """The summary with what was asked for, and a warning where it changed nothing."""
        summary = replace(summary, moe_routing=text)
        if self.mode == BALANCED or not summary.steps:
            return summary
        given = {len(row) for row in self.layers}
        seen = {router.experts for router in summary.moe_routers}
        if not seen:
            return summary.warned(
                f"--moe-routing {text} had no effect: no router of a mixture of experts was seen"
            )
        if given and not given & seen:
            return summary.warned(
                f"--moe-routing {text} had no effect: it has shares for {sorted(given)} experts, "
                f"the routers seen have {sorted(seen)}"
            )
        return summary


def parse(text: str) -> MoeRouting:
    """Reads the option's value.

    Raises UsageError that names the file, the row and the value where something is wrong.
    """
    if text == BALANCED:
        return MoeRouting()
    if text == ZIPF or text.startswith(f"{ZIPF}:"):
        return MoeRouting(mode=ZIPF, alpha=_alpha(text))
    path = Path(text)
    if not path.exists():
        raise UsageError(f"--moe-routing {text!r}: no such file; {_FORMS}")
    try:
        content = read_text(path)
    except OutsideError as error:
        raise UsageError(f"--moe-routing: {error}") from None
    layers = _from_csv(content, text) if path.suffix.lower() == ".csv" else _from_json(content, text)
    for number, row in enumerate(layers):
        _check(row, f"--moe-routing {text}: layer {number}" if len(layers) > 1 else f"--moe-routing {text}")
    return MoeRouting(mode=SHARES, layers=tuple(tuple(row) for row in layers), source=f"--moe-routing {text}")


def _alpha(text: str) -> float:
    _, _, number = text.partition(":")
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not 0 <= alpha <= 10:
        raise UsageError(
            f"--moe-routing {text!r}: ALPHA must be a number from 0 (balanced) to 10, like zipf:1"
        )
    return alpha


def _from_json(content: str, name: str) -> list[list[float]]:
    try:
        value = parse_json(content, name)
    except OutsideError as error:
        raise UsageError(f"--moe-routing {error}") from None
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"shares", "layers"})
        if unknown or len(value) != 1:
            raise UsageError(
                f"--moe-routing {name}: expected one field, 'shares' (a list of numbers) or 'layers' "
                f"(a list of such lists), not {sorted(value)}"
            )
        value = value["layers"] if "layers" in value else [value["shares"]]
    elif isinstance(value, list) and not any(isinstance(entry, list) for entry in value):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise UsageError(
            f"--moe-routing {name}: expected a list of shares, or a list of such lists, one per layer"
        )
    for number, row in enumerate(value):
        for expert, share in enumerate(row):
            if isinstance(share, bool) or not isinstance(share, (int, float)):
                raise UsageError(
                    f"--moe-routing {name}: layer {number}, expert {expert}: {share!r} is not a number"
                )  # fmt: skip
    return value


def _from_csv(content: str, name: str) -> list[list[float]]:
    try:
        rows = parse_csv(content, name, ["expert", "share"])
    except OutsideError as error:
        raise UsageError(f"--moe-routing {error}; the columns are expert, share and perhaps layer") from None
    shares: dict[int, dict[int, float]] = {}
    for line, row in enumerate(rows, start=2):
        where = f"--moe-routing {name}: line {line}"
        layer, expert = (
            _index(row.get("layer") or "0", f"{where}: layer"),
            _index(row["expert"], f"{where}: expert"),
        )
        try:
            share = float(row["share"] or "")
        except ValueError:
            raise UsageError(f"{where}: share {row['share']!r} is not a number") from None
        if expert in shares.setdefault(layer, {}):
            raise UsageError(f"{where}: expert {expert} of layer {layer} appears twice")
        shares[layer][expert] = share
    if not shares:
        raise UsageError(f"--moe-routing {name}: has no rows")
    for number in range(len(shares)):
        if number not in shares:
            raise UsageError(
                f"--moe-routing {name}: layers must be 0 to {len(shares) - 1}; {number} is missing"
            )
        for expert in range(len(shares[number])):
            if expert not in shares[number]:
                raise UsageError(f"--moe-routing {name}: layer {number}: expert {expert} is missing")
    return [[shares[n][e] for e in range(len(shares[n]))] for n in range(len(shares))]


def _index(text: str | None, where: str) -> int:
    try:
        value = int(text or "")
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"{where} must be a whole number from 0, not {text!r}")
    return value


def _check(row: list[float], where: str) -> None:
    if len(row) < 2:
        raise UsageError(f"{where}: expected the shares of at least 2 experts, not {len(row)}")
    for expert, share in enumerate(row):
        if not math.isfinite(share) or share < 0:
            raise UsageError(f"{where}, expert {expert}: a share must be 0 or more, not {share}")
    if sum(row) <= 0:
        raise UsageError(f"{where}: the shares of all experts are 0")
