"""Files from outside: each gives a value or one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netsim.cluster import load_cluster
from netsim.errors import ClusterError
from netsim.outside import (
    OutsideError,
    parse_csv,
    parse_json,
    parse_toml,
    printable,
    read_bytes,
    read_text,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "levels deep"),
        ("[" * 70 + "]" * 70, "levels deep"),
        ('{"a": ' * 100_000, "levels deep"),
        ("9" * 400, "400 digits"),
        ("9" * 5000, "5000 digits"),
        ("1e999", "a number beyond"),
        ("NaN", "NaN is not a JSON number"),
        (str(1 << 64), "65 bits"),
        ('"\\ud800"', "half of a UTF-16 pair"),
        ('{"\\udfff": 1}', "half of a UTF-16 pair"),
    ],
)
def test_json_outside_the_bounds_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OutsideError, match=words) as caught:
        parse_json(text, "file.json")
    assert str(caught.value).startswith("file.json")
    assert "\n" not in str(caught.value)


def test_json_inside_the_bounds_is_its_value() -> None:
    deep = "[" * 60 + "18446744073709551615, -1.5e3, null, true" + "]" * 60
    value = parse_json(deep, "file.json")
    for _ in range(59):
        (value,) = value
    assert value == [18446744073709551615, -1500.0, None, True]
    assert parse_json('"\\ud83d\\ude00"', "file.json") == "\U0001f600"
    assert parse_json("[NaN]", "file.json", not_a_number=True) != [0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = ", "not a TOML file"),
        ("a = " + "[" * 50_000, "levels deep"),
        ("a = " + "9" * 400, "bits"),
        ("a = " + "9" * 5000, "not a TOML file"),
        ("a" + ".a" * 200 + " = 1", "levels deep"),
    ],
)
def test_toml_outside_the_bounds_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OutsideError, match=words):
        parse_toml(text, "file.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column a"),
        ("a,b\n1,2,3", "line 2 has more fields"),
        ('a,b\n"' + "x" * 200_000, "is not CSV"),
    ],
)
def test_csv_outside_the_bounds_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OutsideError, match=words):
        parse_csv(text, "file.csv", ["a"])


def test_csv_rows_have_every_heading() -> None:
    assert parse_csv("a,b\n1,2\n3", "file.csv", ["a"]) == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}]


def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutsideError, match="it is a named pipe"):
        read_bytes(pipe)
    with pytest.raises(OutsideError, match="it is a folder"):
        read_bytes(tmp_path)
    with pytest.raises(OutsideError, match="it is a device"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(OutsideError, match="No such file"):
        read_bytes(tmp_path / "none")
    large = tmp_path / "large"
    large.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(OutsideError, match="larger than the 1 MiB"):
        read_bytes(large, limit_bytes=1 << 20)
    assert len(read_bytes(large, limit_bytes=(1 << 20) + 1)) == (1 << 20) + 1


def test_text_must_be_utf8_and_names_need_not(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    path.write_bytes(b"good\xfe")
    with pytest.raises(OutsideError, match=r"\\xff\.txt is not UTF-8 text: byte 0xfe at 4"):
        read_text(path)
    assert printable(os.fsdecode(b"a\xffb")) == "a\\xffb"
    assert printable("\ud800x") == "\\ud800x"
    assert printable("Straße") == "Straße"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 50_000, "levels deep"),
        ('base = "h100-dgx"\nname = "x"\nwidth = ' + "9" * 400, "bits"),
    ],
)
def test_a_cluster_file_outside_the_bounds_is_a_cluster_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=words):
        load_cluster(path)
