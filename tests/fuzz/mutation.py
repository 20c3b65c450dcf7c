"""Strategies for hostile input: odd values, changed documents, damaged bytes."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (
    *(0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 10**400, True, False),
    *(0.5, -0.5, 1e-320, 1e300, float("inf"), float("-inf"), float("nan")),
)
ODD_TEXTS = ("", "\x00", "\ud800", "\x1b[2J", "</script>", "../../x", "a" * 5000, "९", "ok", "1e999")


def odd_values() -> st.SearchStrategy[Any]:
    """Values of the wrong type, size or form."""
    leaves = st.one_of(
        st.none(),
        st.sampled_from(ODD_NUMBERS),
        st.sampled_from(ODD_TEXTS),
        st.integers(),
        st.floats(),
        st.text(),
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a document of maps and lists, itself left out."""
    if isinstance(document, dict):
        pairs: list[tuple[Any, Any]] = list(document.items())
    elif isinstance(document, list):
        pairs = list(enumerate(document))
    else:
        return []
    return [found for key, value in pairs for found in [(*path, key), *places(value, (*path, key))]]


@st.composite
def changed(draw: st.DrawFn, document: Any, *, most: int = 3) -> Any:
    """The document with up to `most` places replaced by odd values, removed, or given a neighbour."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        found = places(result)
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        holder = result
        for key in path:
            holder = holder[key]
        action = draw(st.sampled_from(("replace", "replace", "remove", "add")))
        if action == "replace":
            holder[last] = draw(odd_values())
        elif action == "remove":
            del holder[last]
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = draw(odd_values())
        else:
            holder.append(draw(odd_values()))
    return result


@st.composite
def json_texts(draw: st.DrawFn, document: Any) -> bytes:
    """A changed document as JSON, sometimes damaged, sometimes something else or far too deep."""
    kind = draw(st.sampled_from(("changed",) * 6 + ("damaged", "other", "deep", "digits")))
    if kind == "other":
        return json.dumps(draw(odd_values())).encode()
    if kind == "deep":
        return draw(st.sampled_from((b"[", b'{"a":', b'{"steps":['))) * draw(st.integers(50, 200_000))
    if kind == "digits":
        return b'{"schema": ' + b"9" * draw(st.integers(19, 6000)) + b"}"
    text = json.dumps(draw(changed(document))).encode()
    return draw(damaged(text)) if kind == "damaged" else text


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes cut short, with a stretch zeroed, changed, doubled or taken out."""
    if not content:
        return draw(st.binary(max_size=64))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from((1, 1, 2, 8, 64, 4096))))
        action = draw(st.sampled_from(("cut", "zero", "change", "double", "remove")))
        if action == "cut":
            content = content[:begin]
        elif action == "zero":
            content = content[:begin] + bytes(end - begin) + content[end:]
        elif action == "change":
            content = content[:begin] + draw(st.binary(min_size=1, max_size=8)) + content[end:]
        elif action == "double":
            content = content[:end] + content[begin:]
        else:
            content = content[:begin] + content[end:]
    return content
