"""The folder that holds the results of one run."""

from __future__ import annotations

import itertools
from pathlib import Path

from phantom.launch.errors import UsageError


def create(out: Path | None, *, cwd: Path | None = None) -> Path:
    """Creates RUN_DIR and its `ranks` folder: `out`, else the first free `phantom-run-<n>`.

    Raises UsageError where `out` holds something already or cannot be created: a run is never overwritten
    silently.
    """
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file; give a folder that does not exist yet")
        if out.is_dir() and any(out.iterdir()):
            what = "a finished run" if (out / "summary.json").exists() else "files"
            raise UsageError(f"--out {out} exists and holds {what}; give another folder or remove it")
        return _make(out)
    base = cwd or Path.cwd()
    for number in itertools.count(1):
        candidate = base / f"phantom-run-{number}"
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot create {candidate}: {error.strerror}; give --out DIR") from None
        return _make(candidate)
    raise AssertionError


def _make(out: Path) -> Path:
    try:
        (out / "ranks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create --out {out}: {error.strerror}") from None
    return out.resolve()
