"""Fits the constants of fused attention to the fitting part of the published rows.

Groups whose rows give forward and backward together take what backward loses from a group that has both
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phantom.kernels.calibrate.case_prices import attention_case_s
from phantom.kernels.calibrate.group_fit import fit_group
from phantom.kernels.calibrate.published_rows import AttentionCase, attention_cases
from phantom.kernels.predict.constants import build_constants
from phantom.kernels.predict.rule_context import Context

_SHAPE_FREE = ("overhead_keys", "mask_keys", "tail", "norm")
_ROBUST = 0.05
_ROBUST_FEW = 0.3  # few rows of many kinds: none is an outlier


def fit_attention(data: dict[str, Any], report: Callable[[str], None]) -> None:
    """Fit every attention group in place, forward before backward."""
    _fit_hopper(data, report)
    _fit_blackwell(data, report)
    _fit_ampere(data, report)


def _of(architecture: str, implementation: str, part: str) -> list[AttentionCase]:
    """Cases of the fitting part whose *part* is ``forward``, ``backward`` or ``both``."""
    return [
        c for c in attention_cases()
        if c.is_fitting and c.gpu.architecture == architecture and c.implementation == implementation
        and c.part == part
    ]  # fmt: skip


def _fit(
    data: dict[str, Any], report: Callable[[str], None], architecture: str, group: str, free: Sequence[str],
    cases: Sequence[AttentionCase], predict: Callable[[Any, Context], float] = attention_case_s,
    *, robust: float = _ROBUST,
) -> None:  # fmt: skip
    median = fit_group(data, architecture, group, free, cases, predict, robust=robust)
    report(f"{architecture} {group}: median {median:.1%} of {len(cases)}")


def _fit_hopper(data: dict[str, Any], report: Callable[[str], None]) -> None:
    for implementation in ("flash", "flash3", "cudnn"):
        free: tuple[str, ...] = ("efficiency_64", "efficiency_128", "efficiency_256", *_SHAPE_FREE)
        group = f"attention.{implementation}"
        _fit(data, report, "hopper", group, free, _of("hopper", implementation, "forward"))
    group = "attention.flash.backward"
    free = ("efficiency_64", "efficiency_128", *_SHAPE_FREE)
    _fit(data, report, "hopper", group, free, _of("hopper", "flash", "both"))
    # No backward row has a head of 256: backward loses against forward what it loses at 128.
    hopper, forward = data["hopper"][group], data["hopper"]["attention.flash"]
    loss = hopper["efficiency_128"] / forward["efficiency_128"]
    hopper["efficiency_256"] = float(f"{forward['efficiency_256'] * loss:.4g}")


def _fit_blackwell(data: dict[str, Any], report: Callable[[str], None]) -> None:
    """cuDNN by TransformerEngine; heads of 64 and 256, of which there is no row, keep their ratio to 128."""
    calls = data["blackwell"]["attention.te_call"]
    for part, group in (("forward", "attention.cudnn"), ("backward", "attention.cudnn.backward")):
        entry = data["blackwell"][group]
        ratios = {size: entry[f"efficiency_{size}"] / entry["efficiency_128"] for size in (64, 256)}
        entry["call_us"] = calls[f"{part}_us"]

        def predict(case: AttentionCase, context: Context, part: str = part, group: str = group) -> float:
            data["blackwell"]["attention.te_call"][f"{part}_us"] = data["blackwell"][group]["call_us"]
            return attention_case_s(case, Context(case.gpu, build_constants("blackwell", data)))

        free = ("efficiency_128", "efficiency_160", "overhead_keys", "tail", "norm", "clock_drop", "call_us")
        cases = _of("blackwell", "cudnn", part)
        _fit(data, report, "blackwell", group, free, cases, predict, robust=_ROBUST_FEW)
        calls[f"{part}_us"] = entry.pop("call_us")
        for size, ratio in ratios.items():
            entry[f"efficiency_{size}"] = float(f"{entry['efficiency_128'] * ratio:.4g}")


def _fit_ampere(data: dict[str, Any], report: Callable[[str], None]) -> None:
    """Most rows give forward and backward together; the few that are apart settle the ratio of the two."""
    entry = data["ampere"]
    for implementation in ("flash", "efficient"):
        forward, backward = f"attention.{implementation}", f"attention.{implementation}.backward"
        linked = entry.setdefault(backward, {})
        merged = build_constants("ampere", data).group(forward)
        source = entry.setdefault(forward, {})
        source.update({f"efficiency_{size}": merged[f"efficiency_{size}"] for size in (64, 128, 256)})
        source.update(backward_ratio=0.85, backward_overhead=150.0, backward_tail=0.5)

        def link(source: dict[str, float] = source, linked: dict[str, float] = linked) -> None:
            for size in (64, 128, 256):
                efficiency = source[f"efficiency_{size}"] * source["backward_ratio"]
                linked[f"efficiency_{size}"] = float(f"{efficiency:.4g}")
            linked["overhead_keys"] = source["backward_overhead"]
            linked["tail"] = source["backward_tail"]

        def predict(case: AttentionCase, context: Context, link: Callable[[], None] = link) -> float:
            link()
            return attention_case_s(case, Context(context.gpu, build_constants("ampere", data)))

        base = merged["efficiency_256"] / merged["efficiency_128"]
        cases = [c for part in ("forward", "backward", "both") for c in _of("ampere", implementation, part)]
        free = (
            "efficiency_64", "efficiency_128", *_SHAPE_FREE, "backward_ratio", "backward_overhead",
            "backward_tail",
        )  # fmt: skip
        _fit(data, report, "ampere", forward, free, cases, predict)
        source["efficiency_256"] = float(f"{source['efficiency_128'] * base:.4g}")
        link()
        for name in ("backward_ratio", "backward_overhead", "backward_tail"):
            source.pop(name)
