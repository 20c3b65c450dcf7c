"""The recorded detail of a run: ranks' files and the simulator's record of collectives."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import write_run

from fuzz.commands import ends_well
from fuzz.limits import FUZZ
from fuzz.mutation import changed, damaged

FILES = ("rank-0.msgpack", "rank-1.msgpack", "collectives.msgpack")
COMMANDS = (
    ("report", "--html"),
    ("report", "--memory"),
    ("export", "--timeline", "x.pftrace"),
    ("export", "--chakra", "x"),
    ("export", "--kineto", "kineto"),
    ("export", "--memory-snapshot", "x.pickle"),
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of two ranks."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, ranks=2, steps=2)
    for name in FILES:
        (folder / name).write_bytes((folder / "spool" / name).read_bytes())
    return folder


def use(run_dir: Path, name: str, content: bytes, data: st.DataObject) -> None:
    """Runs a command with one file of the recording replaced, and puts the file back."""
    (run_dir / "spool" / name).write_bytes(content)
    try:
        command, *options = data.draw(st.sampled_from(COMMANDS))
        options = [str(run_dir / word) if word[0] != "-" else word for word in options]
        ends_well(command, str(run_dir), *options)
    finally:
        (run_dir / "spool" / name).write_bytes((run_dir / name).read_bytes())


@FUZZ
@given(data=st.data())
def test_damaged_bytes_give_a_result_or_one_sentence(run_dir: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    use(run_dir, name, data.draw(damaged((run_dir / name).read_bytes())), data)


@FUZZ
@given(data=st.data())
def test_changed_records_give_a_result_or_one_sentence(run_dir: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    records = list(msgpack.Unpacker(open(run_dir / name, "rb"), raw=False))  # noqa: SIM115
    try:
        content = b"".join(msgpack.packb(record) for record in data.draw(changed(records)))
    except (OverflowError, ValueError, TypeError):  # not every odd value has a form in msgpack
        return
    use(run_dir, name, content, data)
