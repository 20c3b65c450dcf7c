"""Small pieces of HTML: escaped text, tables, stacked bars, legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from phantom.terminal.units import share

Cell = str
"""Escaped HTML; text() makes it from plain text."""


def text(value: object) -> Cell:
    """Plain text, escaped."""
    return escape(str(value))


def code(value: object) -> Cell:
    """Text in a fixed-width font; lines break between its words, not at hyphens ("--ep", "gpu0->nic0")."""
    words = text(value).split(" ")
    if len(words) > 1:
        words = [f'<span class="word">{word}</span>' for word in words]
    return f"<code>{' '.join(words)}</code>".replace("-&gt;", '<span class="word">-&gt;</span>')


def table(
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str,
    sortable: bool = True,
) -> str:
    """A table in a box that scrolls sideways. `columns`: (heading, "text" or "number").

    A cell is HTML, or a pair of HTML and the number by which it is sorted.
    """
    head = "".join(
        f'<th scope="col" class="{kind}">'
        + (f'<button type="button" class="sort">{text(name)}</button>' if sortable else text(name))
        + "</th>"
        for name, kind in columns
    )
    body = []
    for row in rows:
        cells = []
        for (_, kind), cell in zip(columns, row):
            content, key = cell if isinstance(cell, tuple) else (cell, None)
            order = f' data-key="{key!r}"' if key is not None else ""
            cells.append(f'<td class="{kind}"{order}>{content}</td>')
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table>'
        f'<caption class="hidden">{text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def stack(parts: Sequence[tuple[str, float, str]], *, label: str) -> str:
    """A bar of coloured parts. `parts`: (CSS class, share of the whole, what to say about it)."""
    said = ", ".join(what for _, share, what in parts if share > 0)
    inner = "".join(
        f'<span class="{kind}" style="width:{max(share, 0) * 100:.3f}%" title="{text(what)}"></span>'
        for kind, share, what in parts
        if share > 0
    )
    return f'<div class="stack" role="img" aria-label="{text(f"{label}: {said}")}">{inner}</div>'


def meter(value: float, *, kind: str = "compute") -> str:
    """A share from 0 to 1 as a thin bar and in per cent."""
    width = min(max(value, 0.0), 1.0) * 100
    inner = f'<span class="{kind}" style="width:{width:.2f}%"></span>'
    return f'<span class="meter" aria-hidden="true">{inner}</span><span class="part">{share(value)}</span>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Colours and what they stand for: (CSS class, text)."""
    items = "".join(f'<li><span class="swatch {kind}"></span>{text(name)}</li>' for kind, name in entries)
    return f'<ul class="legend">{items}</ul>'


def section(anchor: str, title: str, *parts: str, intro: str = "") -> str:
    """A part of the page with a heading that can be linked to."""
    lead = f'<p class="intro">{text(intro)}</p>' if intro else ""
    return f'<section id="{anchor}"><h2>{text(title)}</h2>{lead}{"".join(parts)}</section>'


def select(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    """A labelled choice: (value, text)."""
    inner = "".join(f'<option value="{text(value)}">{text(shown)}</option>' for value, shown in options)
    return f'<label class="pick">{text(label)} <select id="{name}">{inner}</select></label>'
