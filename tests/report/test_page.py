"""report.html in a real browser: no errors, no requests, usable by keyboard, on small and large screens."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec import structs

from phantom.report.finish import finish
from phantom.report.page import render
from phantom.results.run_summary import plain, summary_from
from phantom.timeline.recording import Recording, load
from report.synthetic import write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--virtual-time-budget=3000", "--enable-logging=stderr",
)  # fmt: skip
# Plays a user: keys on the picture, a click on a column's heading, on the theme, another rank.
DRIVER = """
<script>
addEventListener("load", () => {
  const key = (key, shiftKey) => document.getElementById("overview-canvas")
    .dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
  key("ArrowRight", true); key("ArrowDown", false);
  const said = document.getElementById("overview-said").textContent;
  const head = document.querySelector("#kernels th.number button");
  head.click();
  const sorted = [...head.closest("table").tBodies[0].rows].map((row) => Number(row.cells[1].dataset.key));
  document.getElementById("theme").click();
  const rank = document.getElementById("memory-rank");
  rank.value = "1"; rank.dispatchEvent(new Event("change"));
  const holders = [...document.querySelectorAll(".holders")];
  const shown = holders.filter((h) => !h.hidden).map((h) => h.dataset.rank);
  const result = { said, sorted, shown, theme: document.documentElement.dataset.theme,
    curve: document.querySelectorAll("#memory-curve path").length,
    tight: [...document.querySelectorAll("#collectives .scroll")]
      .every((box) => box.scrollWidth <= box.clientWidth),
    wide: document.documentElement.scrollWidth, window: innerWidth };
  document.title = "RESULT" + JSON.stringify(result);
});
</script>
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_run(folder, ranks=6, steps=3)
    summary = json.loads((folder / "summary.json").read_text())
    summary["command"] = ["train.py", *(f"--option-{number}=value" for number in range(40))]
    wide = {"kind": "reduce_scatter", "ranks": 1024, "nodes": 128, "bytes": 345 << 20, "count": 98765}
    summary["collectives"][0].update(wide, algorithm="collnet_direct", channels=32)
    (folder / "summary.json").write_text(json.dumps(summary))
    finish(folder, timeline=False)
    return folder


def browse(tmp_path: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if BROWSER is None:
        pytest.skip("no chromium on this machine")
    profile = tmp_path / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (400, 800)])
def test_it_works_by_keyboard_on_large_and_small_screens(
    tmp_path: Path, run: Path, width: int, height: int
) -> None:
    page = tmp_path / "driven.html"
    page.write_text((run / "report.html").read_text().replace("</body>", DRIVER + "</body>"))
    done = browse(tmp_path, page, f"--window-size={width},{height}", "--dump-dom")
    found = re.search(r"<title>RESULT(.*?)</title>", done.stdout)
    assert found is not None
    result = json.loads(found.group(1))
    assert result["said"].startswith("rank 1, ")
    assert re.search(
        r"into the step: (idle|compute|exposed transfer|waiting for other ranks)$", result["said"]
    )
    assert result["sorted"] == sorted(result["sorted"], reverse=True)
    assert result["shown"] == ["1"]
    assert result["theme"] in ("light", "dark")
    assert result["curve"] == 2
    assert result["tight"] or width < 1280, "the table of collectives does not fit a desktop's screen"
    assert result["wide"] <= result["window"], "the page itself scrolls sideways"


def requests_of_page(tmp_path: Path, page: Path) -> set[str]:
    """Addresses that the page asked for; the browser's own requests have no origin as initiator."""
    log = tmp_path / "net.json"
    browse(tmp_path, page, f"--log-net-log={log}", "--dump-dom")
    pairs = re.findall(r'"initiator":"([^"]*)".*?"url":"([^"]*)"', log.read_text())
    return {url for initiator, url in pairs if initiator != "not an origin"}


def test_it_asks_nobody_for_anything(tmp_path: Path, run: Path) -> None:
    assert requests_of_page(tmp_path, run / "report.html") == set()
    control = tmp_path / "control.html"
    control.write_text('<img src="http://phantom.invalid/x.png">')
    assert requests_of_page(tmp_path, control) == {"http://phantom.invalid/x.png"}
    outside = re.findall(r"(?:src|href)=\"([^\"#]+)\"", (run / "report.html").read_text())
    assert outside == ["data:,"]


def test_screenshots_in_both_themes_differ_and_are_not_empty(tmp_path: Path, run: Path) -> None:
    sizes = []
    for scheme in (0, 1):  # blink's PreferredColorScheme: dark, light
        shot = tmp_path / f"shot-{scheme}.png"
        scheme_option = f"--blink-settings=preferredColorScheme={scheme}"
        browse(
            tmp_path, run / "report.html", f"--screenshot={shot}", "--window-size=1280,2400", scheme_option
        )
        sizes.append(shot.read_bytes())
    assert all(len(data) > 50_000 for data in sizes)
    assert sizes[0] != sizes[1]


class Structure(HTMLParser):
    """Counts what is open, so that a forgotten end tag shows."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag == "a" and str(named.get("href")).startswith("#"):
            self.links.append(str(named["href"])[1:])
        if tag in ("h1", "h2"):
            self.headings.append(tag)
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"</{tag}> closes something else"


def test_markup_is_balanced_and_links_lead_somewhere(run: Path) -> None:
    structure = Structure()
    structure.feed((run / "report.html").read_text())
    assert structure.stack == []
    assert len(structure.ids) == len(set(structure.ids))
    assert set(structure.links) <= set(structure.ids)
    assert structure.headings.count("h1") == 1
    assert len(structure.links) == 12


def test_hostile_names_are_shown_not_run(tmp_path: Path, run: Path) -> None:
    recording = load(run)
    evil = "</script><script>alert(1)</script>"
    kernel = structs.replace(recording.summary.top_kernels[0], name=evil)
    summary = structs.replace(recording.summary, command=(evil,), warnings=(evil,), top_kernels=(kernel,))
    text = render(Recording(run, summary, recording.ranks))
    assert "<script>alert" not in text
    assert text.count("</script>") == 2


def test_a_run_that_failed_early_still_has_a_page(tmp_path: Path) -> None:
    failure = {"kind": "deadlock", "message": "rank 0 waits for rank 1\n  in all_reduce"}
    summary = {"schema": 1, "command": ["x.py"], "status": "deadlock", "world_size": 2, "failure": failure}
    text = render(Recording(tmp_path, summary_from(summary)))
    assert "rank 0 waits for rank 1" in text
    assert "No step was seen" in text


def test_the_page_of_an_oom_says_who_ran_out_and_what_would_fit(run: Path) -> None:
    recording = load(run)
    fault = {
        "kind": "oom",
        "rank": 2,
        "now_ps": 10**12,
        "requested_bytes": 2 << 30,
        "allocated_bytes": 4 << 30,
    }
    fault |= {"reserved_bytes": 4 << 30, "capacity_bytes": 5 << 30, "holders": {"activations": 4 << 30}}
    failure = {"kind": "peer-lost", "message": "rank 3 is gone"}
    changes = {"status": "oom", "faults": [fault], "failure": failure, "steps": []}
    summary = summary_from({**plain(recording.summary), **changes})
    ranks = {number: replace(spool, steps=()) for number, spool in recording.ranks.items()}
    text = render(Recording(run, summary, ranks))
    assert "rank 2 ran out of memory at 1 s of virtual time" in text
    assert "activations (4.00 GiB) would have to shrink by 25.0%" in text
    assert "rank 3 is gone" not in text
    assert text.count("No step was complete.") == 2
    assert "--timeline-steps" not in text


def test_copies_are_listed_apart_from_collectives(run: Path) -> None:
    recording = load(run)
    listed = recording.summary.collectives
    copy = structs.replace(listed[0], kind="h2d", ranks=1, bytes=3 << 20)
    for shown in ((copy,), (copy, *listed)):
        text = render(replace(recording, summary=structs.replace(recording.summary, collectives=shown)))
        section = text.partition('<section id="collectives">')[2].partition("</section>")[0]
        collectives, mark, copies = section.partition("Copies between host and device")
        assert mark
        assert "host to device" in copies
        assert "host to device" not in collectives
        assert ("The job communicated nothing." in collectives) == (len(shown) == 1)
