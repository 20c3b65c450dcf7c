"""The final table and the progress line, on a terminal and off it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from phantom.report.finish import finish
from phantom.results.run_summary import CollectiveSummary, Summary, TopKernel
from phantom.terminal.progress import Progress
from phantom.terminal.table import final_table, plain, show
from phantom.terminal.units import rate, seconds, share, size
from phantom.timeline.recording import load
from report.synthetic import write_run


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_units() -> None:
    assert [seconds(v) for v in (1.5, 0.0415, 2e-5, 3e-8, 0, None)] == [
        "1.5 s", "41.5 ms", "20 us", "30 ns", "0 s", "-",
    ]  # fmt: skip
    assert [size(v) for v in (3 << 30, 1536, 12)] == ["3.00 GiB", "1.50 KiB", "12 B"]
    assert (rate(450e9), rate(0), rate(None)) == ("450.0 GB/s", "0 B/s", "-")
    assert (share(0.25), share(1e-5), share(0)) == ("25.0%", "<0.1%", "0%")


def test_table_off_a_terminal_is_plain_text(tmp_path: Path) -> None:
    write_run(tmp_path)
    summary = finish(tmp_path, timeline=False, tokens_per_step=4096, options={"seed": 0})
    assert summary.tokens_per_s == 4096 / (summary.step_virtual_s.median or 0)
    out = io.StringIO()
    show(load(tmp_path).summary, stream=out)
    text = out.getvalue()
    assert "\x1b" not in text
    for wanted in (
        "step time, median",
        "compute / exposed communication / idle",
        "waiting for other ranks",
        "peak memory per rank",
        "predicted 74.0%",
        "3 calls without a cost",
        "all_reduce",
        "ring/simple",
        "warning: the learning-rate schedule",
    ):
        assert wanted in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_ten_most_expensive_kernels_are_listed_with_the_source_of_their_cost() -> None:
    sources = ("measured", "predicted", "unpriced")
    kernels = [
        TopKernel(name=f"aten::op{i}", source=sources[i % 3], count=1, virtual_s=1.0 / (i + 1))
        for i in range(12)
    ]
    text = plain(Summary(cluster="x", status="ok", top_kernels=tuple(kernels)))
    listed = [line.split()[:2] for line in text.splitlines() if line.startswith("aten::")]
    assert listed == [[f"aten::op{i}", sources[i % 3]] for i in range(10)]


def test_quiet_leaves_warnings_out_and_rich_gives_the_same_figures(tmp_path: Path) -> None:
    write_run(tmp_path)
    summary = load(tmp_path).summary
    quiet = io.StringIO()
    show(summary, quiet=True, stream=quiet)
    assert "warning" not in quiet.getvalue()
    console = Console(file=io.StringIO(), width=160)
    console.print(final_table(summary))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for line in plain(summary).splitlines()[:4]:
        assert line.split("  ")[0] in drawn


def test_a_run_without_steps_or_ranks_still_has_a_table() -> None:
    text = plain(Summary(cluster="x"))
    assert "1 GPU on 1 node of x" in text
    assert "none seen" in text


def test_progress_says_what_is_awaited_only_when_nothing_moves() -> None:
    now = [100.0]
    terminal = Terminal()
    progress = Progress(stream=terminal, now=lambda: now[0])
    progress.phase("starting the simulator")
    assert "starting the simulator" in terminal.getvalue()
    state = {"virtual_s": 0.5, "steps": 3, "attached": 8, "awaited": "rank 3 in all_reduce"}
    now[0] = 102.0
    progress.update(state)
    assert "virtual 500 ms · real 2 s · 0.25x real time · steps 3" in progress.line()
    assert "rank 3" not in progress.line()
    now[0] = 108.0
    progress.update(state)
    assert "nothing moved for 6 s, waiting for rank 3 in all_reduce" in progress.line()
    progress.show()
    progress.clear()
    before = terminal.getvalue()
    progress.clear()
    assert terminal.getvalue() == before


def test_progress_off_a_terminal_is_a_plain_line_each_time_the_wait_has_doubled() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = Progress(stream=out, now=lambda: now[0])
    progress.phase("importing torch")
    state = {
        "virtual_s": 0.0,
        "steps": 0,
        "attached": 1,
        "ranks": 4,
        "awaited": "rank 2, which has not attached yet",
    }

    def wait(seconds: int) -> list[str]:
        """The lines of so many seconds in which nothing moves."""
        before = len(out.getvalue())
        for _ in range(seconds):
            now[0] += 1.0
            progress.show()
        return out.getvalue()[before:].splitlines()

    assert wait(4) == []
    progress.update(state)
    assert wait(4) == []
    waiting = "nothing moved for {} s, waiting for rank 2, which has not attached yet"
    assert [line.split(" · ", 4)[-1] for line in wait(26)] == [waiting.format(s) for s in (5, 10, 20)]
    assert "ranks started 1 of 4" in out.getvalue()
    progress.update(state | {"virtual_s": 1e-3, "attached": 4})
    assert wait(4) == []
    assert progress.stuck() is None
    (line,) = wait(5)
    assert line.startswith("phantom: virtual 1 ms · real 39 s · steps 0 · nothing moved for 5 s")
    assert "\x1b" not in out.getvalue()
    quiet = io.StringIO()
    progress = Progress(enabled=False, stream=quiet, now=lambda: now[0])
    now[0] += 60.0
    progress.show()
    assert quiet.getvalue() == ""


def test_a_terminal_of_80_columns_breaks_no_word_and_no_row() -> None:
    collectives = tuple(
        CollectiveSummary(
            kind=kind, ranks=128, nodes=16, bytes=13 << 20, count=12345, virtual_s=3.21, algorithm="nvlstree",
            protocol="simple", bus_bandwidth_bytes_per_s=312.1e9, bus_limit_bytes_per_s=450e9,
        )
        for kind in ("reduce_scatter", "all_gather")
    )  # fmt: skip
    kernels = tuple(
        TopKernel(name=name, source="predicted", count=123456, virtual_s=1.0)
        for name in (
            "aten::_scaled_dot_product_flash_attention_backward",
            "triton::" + "fused_" * 20,
            "aten::mm",
        )
    )
    summary = Summary(cluster="x", status="ok", collectives=collectives, top_kernels=kernels)
    console = Console(file=io.StringIO(), width=80)
    console.print(final_table(summary, width=80))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "reduce_scatter" in line]
    assert "128 on 16 nodes" in line
    assert "312.1 GB/s" in line
    assert len([line for line in lines if "1 s" in line and "33.3%" in line]) == 3


def test_colour_only_on_a_terminal_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    summary = Summary(cluster="x", status="ok", warnings=("careful",))

    def shown() -> str:
        terminal = Terminal()
        show(summary, stream=terminal)
        return terminal.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mok" in shown()
    assert "\x1b[33mwarning" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown()
    assert "\x1b[33m" not in shown()
