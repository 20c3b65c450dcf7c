"""Links between the pages lead somewhere, and every page can be reached from README.md."""

from __future__ import annotations

import re
from pathlib import Path

from .pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(
    r"(?<![\w./-])((?:docs|examples|benchmarks|tests|phantom|netsim|interpose)/[\w./-]+\.(?:md|py|csv))\b"
)


def targets(page: Path) -> list[tuple[str, str]]:
    """Relative links of a page: the path and the anchor."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    links = [link.partition("#") for link in found if "://" not in link and not link.startswith("mailto:")]
    return [(path, anchor) for path, _, anchor in links]


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_links_lead_somewhere() -> None:
    # `make accuracy` writes pages that need hours or another machine; until then they are not here.
    made = "".join(path.read_text() for path in (ROOT / "tests" / "accuracy").glob("*.py"))
    broken = []
    for page in PAGES:
        for path, anchor in targets(page):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() and f"docs/{target.name}" in made:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert broken == []


def test_files_that_the_pages_name_exist() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in NAMED.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_every_page_can_be_reached() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        text = page.read_text(encoding="utf-8")
        todo += [(page.parent / path).resolve() for path, _ in targets(page) if path.endswith(".md")]
        todo += [ROOT / name for name in NAMED.findall(text) if name.endswith(".md")]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []
