"""`phantom kernels`: the store of kernel measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from netsim.outside import MAX_BYTES, OutsideError, decode_text, parse_json, read_text
from phantom.kernels.key import cost_key
from phantom.kernels.measure.kernel_store import KernelStore, StoreError, default_path
from phantom.kernels.measure.kernel_suite import SUITES, suite
from phantom.kernels.measure.local_device import LocalDevice, local_cpu, local_cuda
from phantom.kernels.measure.measurer import MeasurementFailed, Measurer
from phantom.kernels.predict.predictor import Predictor
from phantom.kernels.request.description import KernelDescription, KernelFormatError, parse_kernel

_STORE = click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    show_default="the user's cache",
    help="Kernel store (SQLite).",
)


class KernelsError(click.ClickException):
    """Bad usage or an unusable file: exit status 2."""

    exit_code = 2


def _fail(error: Exception | str) -> NoReturn:
    raise KernelsError(str(error))


def _open(path: Path | None, *, create: bool) -> KernelStore:
    try:
        return KernelStore(path or default_path(), create=create)
    except StoreError as error:
        _fail(error)


@click.group()
def kernels() -> None:
    """The kernel store."""


@kernels.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--suite", "suite_name", type=click.Choice(SUITES), show_default="small",
              help="A built-in list, if no FILES are given.")  # fmt: skip
@click.option("--device", "kind", type=click.Choice(["cpu", "cuda"]), show_default="cuda if it is here",
              help="Where to run.")  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads of a rank."
)
@click.option(
    "--dtype", show_default="small: float32, transformer: bfloat16", help="dtype of the built-in list."
)
@click.option(
    "--budget",
    type=click.FloatRange(0.01),
    default=0.2,
    show_default=True,
    help="Seconds spent on one kernel.",
)
@click.option("--again", is_flag=True, help="Measure also what the store has.")
@_STORE
def measure(
    files: tuple[Path, ...], suite_name: str | None, kind: str | None, threads: int, dtype: str | None,
    budget: float, again: bool, store: Path | None,
) -> None:  # fmt: skip
    """Measure kernels on this machine's device and keep them in the store.

    FILES hold one kernel per line, in the JSON form of a cost request (a run writes them).
    """
    wanted = list(_read_kernels(files)) if files else suite(suite_name or "small", dtype=dtype)
    device = _device(kind, threads)
    keep = _open(store, create=True)
    from phantom.kernels.gpu import gpu_by_name

    nothing = Predictor(gpu_by_name("cpu" if device.kind == "cpu" else "h100"))
    done = failed = known = 0
    with keep, Measurer(device, budget_s=budget, lock_path=keep.path.with_suffix(".measuring")) as measurer:
        for key, kernel in {cost_key(kernel): kernel for kernel in wanted}.items():
            if nothing.estimate(kernel) is None:
                continue
            if (
                not again
                and keep.find(key, device.name, threads=device.threads, torch=device.torch) is not None
            ):
                known += 1
                continue
            try:
                with measurer.exclusive():
                    found = measurer.measure(kernel, key)
            except MeasurementFailed as error:
                failed += 1
                click.echo(f"cannot measure {key}: {error}", err=True)
                continue
            keep.add(found)
            done += 1
            click.echo(f"{found.median_s * 1e6:12.2f} us  +-{found.spread_s / found.median_s:4.0%}  {key}")
        where = f"{device.name}, {device.threads} thread(s)" if device.kind == "cpu" else device.name
        click.echo(f"{done} measured, {known} known, {failed} failed on {where}; store {keep.path}")


def _device(kind: str | None, threads: int) -> LocalDevice:
    if kind != "cpu":
        device = local_cuda()
        if device is not None:
            return device
        if kind == "cuda":
            _fail("no CUDA device is here (or this torch has no CUDA): use --device cpu, or another machine")
    return local_cpu(threads=threads)


def _read_kernels(files: tuple[Path, ...]) -> Iterator[KernelDescription]:
    for path in files:
        try:
            lines = read_text(path).splitlines()
        except OutsideError as error:
            _fail(error)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield parse_kernel(parse_json(line, f"{path}, line {number}"))
            except OutsideError as error:
                _fail(error)
            except (ValueError, KernelFormatError, TypeError, LookupError, AttributeError) as error:
                _fail(f"{path}, line {number}: not a kernel ({error})")


@kernels.command()
@click.argument("text", required=False)
@click.option("--device", metavar="NAME", show_default="all", help="Only of this device.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@_STORE
def show(text: str | None, device: str | None, as_json: bool, store: Path | None) -> None:
    """List the measurements, those with TEXT in their key if given."""
    with _open(store, create=False) as keep:
        found = keep.measurements(device=device, text=text)
        if as_json:
            for m in found:
                click.echo(json.dumps(asdict(m), sort_keys=True))
            return
        last = ""
        for m in found:
            title = f"{m.device}, torch {m.torch}, {m.runtime}" + (
                f", {m.threads} thread(s)" if m.kind == "cpu" else ""
            )
            if title != last:
                click.echo(title)
                last = title
            click.echo(
                f"  {m.median_s * 1e6:12.2f} us  +-{m.spread_s / m.median_s:4.0%}  n={m.repetitions:<4d} "
                f"{m.key}"
            )
        click.echo(f"{len(found)} measurement(s) in {keep.path}")


@kernels.command()
@click.argument("others", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@_STORE
def merge(others: tuple[Path, ...], store: Path | None) -> None:
    """Take over the measurements of OTHERS, which are stores."""
    opened = [_open(other, create=False) for other in others]
    with _open(store, create=True) as keep:
        for other in opened:
            result = keep.merge(other)
            click.echo(f"{other.path}: {_counts(result)}")
            other.close()


@kernels.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default="-")
@_STORE
def export_(file: Path, store: Path | None) -> None:
    """Write the store as JSON lines to FILE (default: the terminal)."""
    with _open(store, create=False) as keep:
        text = keep.export_text()
    if str(file) == "-":
        click.echo(text, nl=False)
    elif file.exists():
        _fail(f"{file}: exists already; give another name")
    else:
        file.write_text(text, encoding="utf-8")


@kernels.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_STORE
def import_(file: Path, store: Path | None) -> None:
    """Take over the JSON lines of FILE (- for standard input)."""
    try:
        if str(file) == "-":
            text = decode_text(sys.stdin.buffer.read(MAX_BYTES), "standard input")
        else:
            text = read_text(file)
        with _open(store, create=True) as keep:
            click.echo(
                _counts(keep.import_text(text, source="standard input" if str(file) == "-" else str(file)))
            )
    except (StoreError, OutsideError) as error:
        _fail(error)


def _counts(result: Any) -> str:
    return f"{result.added} added, {result.replaced} replaced, {result.kept} kept"
