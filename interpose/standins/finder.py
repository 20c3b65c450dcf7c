"""Serves stand-ins to `import`, `importlib.metadata` and feature probes, for libraries that are not
installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from interpose import environment
from interpose.standins import registry
from interpose.standins.registry import StandIn
from interpose.standins.surface import fill
from interpose.standins.surfaces import model

PACKAGES = Path(__file__).with_name("packages")
OPTION = "stand_ins"


class MissingFromStandIn(ModuleNotFoundError):
    """A module of the library that its stand-in does not have; the text says what to do."""


class StandInFinder:
    """The last finder on sys.meta_path, so that a library that is installed wins.

    Finds the top-level modules of the registry's libraries in `packages/`, and explains sub-modules that
    they lack. A finder that was appended later is asked first (editable installs append theirs).
    """

    def __init__(self) -> None:
        self._read_from: str | None = None
        self._allowed: frozenset[str] = frozenset()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system for a module that no other finder knows."""
        top, _, rest = name.partition(".")
        stand_in = registry.BY_MODULE.get(top)
        if stand_in is None or stand_in.name not in self.allowed():
            return None
        if stand_in.named_only and not _is_import(sys._getframe(2)):
            return None
        if rest and name in model.load(stand_in.name).modules:
            return _spec(name, stand_in)
        if rest:
            self._explain_missing(name, top, stand_in)
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in later:
            if getattr(finder, "find_spec", None) and finder.find_spec(name, path, target) is not None:
                return None
        return _spec(name, stand_in)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """Called by importlib.metadata: the stand-ins of libraries that are not installed."""
        wanted = getattr(context, "name", None)
        allowed = self.allowed()
        for stand_in in registry.STAND_INS:
            if (
                stand_in.name in allowed
                and not stand_in.named_only
                and (wanted is None or _normal(wanted) == _normal(stand_in.distribution))
            ):
                yield StandInDistribution(stand_in)

    def invalidate_caches(self) -> None:
        """Part of a finder's protocol; nothing is cached."""

    def allowed(self) -> frozenset[str]:
        """The libraries that may be stood in for in this job; none outside a job."""
        text = os.environ.get(environment.CONFIG)
        if text is None or text == "":
            return frozenset()
        if text != self._read_from:
            self._allowed = registry.chosen(str(environment.read().config.get(OPTION, "all")))
            self._read_from = text
        return self._allowed

    def _explain_missing(self, name: str, top: str, stand_in: StandIn) -> None:
        """Raises where a module is being imported; a mere question whether it exists gets its `no`."""
        module = sys.modules.get(top)
        if module is None or not getattr(module, "__phantom_stand_in__", False):
            return
        if _is_import(sys._getframe(3)):
            raise MissingFromStandIn(
                f"No module named {name!r} in {stand_in.title} {stand_in.version}, the version that the "
                f"stand-in follows (docs/stand-ins.md). If the script is for another version, install "
                f"{stand_in.distribution} for this Python, or run with `phantom run --stand-ins none` if the "
                f"script works without it.",
                name=name,
            )


class StandInDistribution(importlib.metadata.Distribution):
    """What importlib.metadata says of a stand-in: name, version and top-level modules."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def read_text(self, filename: str) -> str | None:
        """The text of a metadata file; None for those that there are not."""
        about = self._stand_in
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {about.distribution}\nVersion: {about.version}\n"
        if filename == "top_level.txt":
            return "\n".join(about.modules) + "\n"
        return None

    def locate_file(self, path: Any) -> Any:
        """Where a file of the distribution is."""
        return PACKAGES / str(path)


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _is_import(frame: FrameType) -> bool:
    """Whether the caller of the import system's search is an import and not a question."""
    return frame.f_code.co_name == "_find_and_load_unlocked"


def _spec(name: str, stand_in: StandIn) -> ModuleSpec | None:
    package, module = PACKAGES / name.replace(".", "/"), PACKAGES / f"{name.replace('.', '/')}.py"
    spec: ModuleSpec | None
    if (package / "__init__.py").is_file():
        spec = importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
    elif module.is_file():
        spec = importlib.util.spec_from_file_location(name, module)
    else:
        is_package = model.load(stand_in.name).modules[name].is_package
        spec = ModuleSpec(name, ListedLoader(), origin=str(model.LISTS / f"{stand_in.name}.json"))
        spec.submodule_search_locations = [str(package)] if is_package else None
    if spec is None or spec.loader is None:
        return None
    if "." in name:
        return spec
    execute = spec.loader.exec_module

    def exec_module(made: ModuleType) -> None:
        made.__dict__["__phantom_stand_in__"] = True
        made.__dict__.setdefault("__version__", stand_in.version)
        execute(made)
        _note_use(stand_in)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign, assignment]  # this loader only
    return spec


class ListedLoader(Loader):
    """Loads a module that is nothing but its names in the library's surface list."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module."""
        fill(module)


def _note_use(stand_in: StandIn) -> None:
    """Tells the summary, once the extension is there."""
    from interpose.after_import import after_import

    def tell(_: ModuleType) -> None:
        extension: Any = sys.modules.get("interpose._C")
        if extension is None:
            return
        extension.note_stand_in(stand_in.name, stand_in.version)
        extension.warn(
            f"{stand_in.title} is not installed for the job's Python: phantom's stand-in of "
            f"{stand_in.version} was used (--stand-ins none does without it; docs/stand-ins.md)"
        )

    after_import("torch.cuda", tell)


def install() -> None:
    """Puts the finder last on sys.meta_path, once."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())
