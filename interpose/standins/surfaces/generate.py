"""Makes the lists of `lists/` from the sources of the libraries.

    python -m interpose.standins.surfaces.generate LIBRARY VERSION SOURCE FOLDER...

SOURCE says where the sources are published (an address and a tag); every FOLDER is a Python package of the
library or a file that names a compiled module's functions (`module=file.cpp,file.cpp`, pybind11).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from interpose.standins.surfaces.model import (
    LISTS,
    Class,
    Entry,
    Function,
    Imported,
    ModuleSurface,
    Surface,
    dump,
)
from interpose.standins.surfaces.source_names import SourceNames, public_names, read_source

_SKIPPED = ("tests", "test", "benchmarks", "jax", "examples", "third_party", "_flash_attn", "build_tools")
_STANDARD = sys.stdlib_module_names
_PYBIND_FUNCTION = re.compile(r"\bm\w*\.def\(\s*\"(\w+)\"")
_PYBIND_CLASS = re.compile(r"\bpy(?:bind11)?::(?:class_|enum_)<[^;]*?>\(\s*\w+,\s*\"(\w+)\"")
_PYBIND_MEMBER = re.compile(r"\.(?:value|def\w*)\(\s*\"(\w+)\"")


def read_package(folder: Path) -> dict[str, ModuleSurface]:
    """The modules of a Python package."""
    sources: dict[str, tuple[bool, SourceNames]] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_test = path.name.startswith("test_") or path.name.endswith("_test.py")
        if any(part in _SKIPPED for part in parts[1:]) or is_test or path.name == "setup.py":
            continue
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources[name] = (is_package, read_source(path.read_text(), name, is_package=is_package))
    # Folders without __init__ are packages of the language, too.
    for name in list(sources):
        parent = name.rpartition(".")[0]
        while parent and parent not in sources:
            sources[parent] = (True, SourceNames())
            parent = parent.rpartition(".")[0]

    def resolve(name: str) -> SourceNames | None:
        return sources[name][1] if name in sources else None

    modules: dict[str, ModuleSurface] = {}
    for name, (is_package, found) in sources.items():
        names = _with_stars(found, resolve)
        # `from . import jax`: a sub-module that is left out here, or that only a build makes.
        own = [key for key, entry in names.items() if entry == Imported(name, key)]
        for key in own:
            if f"{name}.{key}" not in sources:
                del names[key]
        modules[name] = ModuleSurface(is_package, names)
    return modules


def _with_stars(found: SourceNames, resolve: object) -> dict[str, Entry]:
    names: dict[str, Entry] = {}
    for star in found.stars:
        other = resolve(star)  # type: ignore[operator]
        if other is not None:
            names |= {name: Imported(star, name) for name in public_names(other, resolve)}  # type: ignore[arg-type]
    names |= found.names
    return {name: entry for name, entry in names.items() if not _is_standard(entry)}


def _is_standard(entry: Entry) -> bool:
    """Nobody imports the standard library by way of a library; that would be half of every list."""
    return isinstance(entry, Imported) and entry.module.partition(".")[0] in _STANDARD


def read_compiled(files: list[Path]) -> ModuleSurface:
    """The functions and classes that pybind11 code defines."""
    names: dict[str, Entry] = {}
    for file in files:
        text = file.read_text()
        names |= {name: Function(None) for name in _PYBIND_FUNCTION.findall(text)}
        for found in _PYBIND_CLASS.finditer(text):
            members = _PYBIND_MEMBER.findall(text[found.end() : text.find(";", found.end())])
            names[found.group(1)] = Class((), tuple(dict.fromkeys(members)))
    return ModuleSurface(False, names)


def main(arguments: list[str]) -> None:
    """Writes one list."""
    library, version, source, *places = arguments
    modules: dict[str, ModuleSurface] = {}
    for place in places:
        name, _, files = place.partition("=")
        if files:
            modules[name] = read_compiled([Path(file) for file in files.split(",")])
        elif place.endswith(".py"):
            path = Path(place)
            found = read_source(path.read_text(), path.stem, is_package=False)
            modules[path.stem] = ModuleSurface(False, _with_stars(found, lambda _: None))
        else:
            modules |= read_package(Path(place))
    LISTS.mkdir(exist_ok=True)
    (LISTS / f"{library}.json").write_text(dump(Surface(library, version, source, modules)))


if __name__ == "__main__":
    main(sys.argv[1:])
