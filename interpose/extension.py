"""Loads the C++ extension built for the installed torch."""

from __future__ import annotations

import importlib.util
import sys
from typing import cast

from interpose import build
from interpose.extension_protocol import Extension


class ExtensionNotBuilt(RuntimeError):
    """The extension is missing, or built from other sources or another torch; the text says what to do."""


def load() -> Extension:
    """Returns the module `interpose._C`, loading it once. torch must be imported first.

    Raises ExtensionNotBuilt when there is no build for the installed torch and these sources.
    """
    loaded = sys.modules.get("interpose._C")
    if loaded is not None:
        return cast(Extension, loaded)
    if not build.is_current():
        raise ExtensionNotBuilt(
            f"phantom's extension is not built for torch {build.torch_version()} "
            f"(looked in {build.build_dir()}); "
            f"build it with: {build.REBUILD}"
        )
    spec = importlib.util.spec_from_file_location("interpose._C", build.library())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["interpose._C"] = module
    spec.loader.exec_module(module)
    return cast(Extension, module)
