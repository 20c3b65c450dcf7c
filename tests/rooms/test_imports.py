"""The modules of the tree import each other in no circle, imports inside functions included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in turn; empty where there are none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("phantom", "netsim", "interpose", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    assert circle(imports) == []


@pytest.mark.parametrize(("closing", "length"), [("a", 4), ("c", 2)])
def test_a_circle_is_found(closing: str, length: int) -> None:
    assert len(circle({"a": {"b"}, "b": {"c"}, "c": {closing}})) == length
