"""The ends of logs, as messages show them."""

from __future__ import annotations

from pathlib import Path

from phantom.launch.logs import tail

LEAKS = "nanobind: leaked 64 types!\n" + ' - leaked type "ATOMIC_OP"\n' * 40 + " - ... skipped remainder\n"


def test_the_exception_is_not_hidden_by_a_librarys_list_of_leaks(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(
        f"a\nZeroDivisionError: x\n{LEAKS}nanobind: this is likely caused by ...\nSee https://nanobind.io/x.html"
    )
    assert tail(log, 2) == "a\nZeroDivisionError: x"


def test_the_last_lines_and_nothing_where_there_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("\n".join(str(line) for line in range(5000)))
    assert tail(log, 2) == "4998\n4999"
    assert tail(tmp_path / "none.log") == ""
