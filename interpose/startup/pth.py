"""Installs the hook that attaches any Python process of a job: a .pth line in the interpreter's
site-packages.

A .pth line is executed by `site` at start-up, also under -I and -E, where PYTHONPATH and sitecustomize are
ignored. Without PHANTOM in the environment the line costs one look-up and imports nothing. With it, it loads
`_phantom_hook`, which makes `interpose` and `phantom` importable from where they are installed, whatever
virtual environment that is, and nothing else of it.

This file also runs by itself, under an interpreter that has none of phantom's packages: `python pth.py
SITE_PACKAGES`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

PTH_NAME = "phantom-attach.pth"
HOOK_NAME = "_phantom_hook.py"
PTH_LINE = "import os; 'PHANTOM' in os.environ and __import__('_phantom_hook')\n"

_HOOK = '''"""Written by phantom: attaches this process when PHANTOM is set; see `phantom doctor`."""

import importlib.util
import os
import sys

ROOT = os.environ.get("PHANTOM_ROOT") or {root!r}


class PhantomPackages:
    """Finds phantom's packages where they are installed, without adding a folder to sys.path."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("interpose", "phantom"):
            return None
        folder = os.path.join(ROOT, name)
        return importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


if os.environ.get("PHANTOM") not in (None, "", "0"):
    if os.path.isdir(os.path.join(ROOT, "interpose")):
        if not any(type(finder).__name__ == "PhantomPackages" for finder in sys.meta_path):
            sys.meta_path.insert(0, PhantomPackages())
        from interpose.startup.import_hook import install

        install()
        # What a job prints goes to a file, and is wanted as it comes. By lines, not by pieces as with
        # PYTHONUNBUFFERED: ranks may share a pipe (mpirun's), where pieces of several would mix.
        if hasattr(sys.stdout, "reconfigure") and not sys.stdout.write_through:
            sys.stdout.reconfigure(line_buffering=True)
    else:
        sys.stderr.write("phantom: %s is gone; run `phantom doctor` to renew the hook\\n" % ROOT)
'''
_ROOT_LINE = re.compile(r"^ROOT = .*$", re.MULTILINE)


def root() -> str:
    """Folder that holds the packages `interpose` and `phantom`."""
    return str(Path(__file__).resolve().parents[2])


def hook_text() -> str:
    """Text of the module that the .pth line imports. PHANTOM_ROOT overrides the folder recorded in it."""
    return _HOOK.format(root=root())


def is_installed(site_packages: str | os.PathLike[str]) -> bool:
    """Whether `site_packages` has this version of the hook; it may record another folder that still
    exists."""
    folder = Path(site_packages)
    try:
        line, text = (folder / PTH_NAME).read_text(), (folder / HOOK_NAME).read_text()
    except OSError:
        return False
    recorded = _ROOT_LINE.search(text)
    if line != PTH_LINE or recorded is None or _ROOT_LINE.sub("", text) != _ROOT_LINE.sub("", hook_text()):
        return False
    return Path(recorded.group().rpartition(" or ")[2].strip("'\"")).is_dir()


def install(site_packages: str | os.PathLike[str]) -> bool:
    """Writes the hook into `site_packages`; returns whether anything had to be written.

    Raises OSError where the folder cannot be written. Each file appears whole or not at all (rename).
    """
    if is_installed(site_packages):
        return False
    folder = Path(site_packages)
    for name, text in ((HOOK_NAME, hook_text()), (PTH_NAME, PTH_LINE)):
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.write_text(text)
        temporary.replace(folder / name)
    return True


def remove(site_packages: str | os.PathLike[str]) -> bool:
    """Takes the hook out again; returns whether there was one. Raises OSError where it cannot be removed."""
    found = False
    for name in (PTH_NAME, HOOK_NAME):
        path = Path(site_packages) / name
        if path.exists():
            path.unlink()
            found = True
    return found


if __name__ == "__main__":
    install(sys.argv[1])
