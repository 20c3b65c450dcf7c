"""`--moe-routing`: its forms, its files, and what is said about bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantom.launch.errors import UsageError
from phantom.launch.moe_routing import MoeRouting, parse
from phantom.results.run_summary import Router, StepTime, Summary


def test_balanced_and_zipf() -> None:
    assert parse("balanced") == MoeRouting()
    assert parse("zipf:1.25") == MoeRouting(mode="zipf", alpha=1.25)


@pytest.mark.parametrize(
    ("name", "content", "layers"),
    [
        ("s.json", "[3, 1]", ((3, 1),)),
        ("s.json", '{"shares": [3, 1, 0]}', ((3, 1, 0),)),
        ("s.json", '{"layers": [[3, 1], [1, 1]]}', ((3, 1), (1, 1))),
        ("s.json", "[[3, 1], [1, 1]]", ((3, 1), (1, 1))),
        ("s.csv", "expert,share\n1,0.25\n0,0.75\n", ((0.75, 0.25),)),
        ("s.csv", "layer,expert,share\n0,0,1\n0,1,2\n1,0,5\n1,1,0\n", ((1, 2), (5, 0))),
    ],
)
def test_files(tmp_path: Path, name: str, content: str, layers: tuple[tuple[float, ...], ...]) -> None:
    file = tmp_path / name
    file.write_text(content)
    found = parse(str(file))
    assert (found.mode, found.layers) == ("shares", layers)
    assert str(file) in found.source
    json.dumps(found.message())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("s.json", "[3, ", "is not JSON"),
        ("s.json", "[]", "at least 2 experts, not 0"),
        ("s.json", "[1]", "at least 2 experts, not 1"),
        ("s.json", '[1, "x"]', "layer 0, expert 1: 'x' is not a number"),
        ("s.json", "[1, true]", "expert 1: True is not a number"),
        ("s.json", "[1, -2]", "expert 1: a share must be 0 or more, not -2"),
        ("s.json", "[1, NaN]", "NaN is not a JSON number"),
        ("s.json", "[0, 0]", "the shares of all experts are 0"),
        ("s.json", "[[1, 1], 2]", "list of shares"),
        ("s.json", "[[1, 1], [0, 0]]", "layer 1: the shares of all experts are 0"),
        ("s.json", '{"share": [1, 2]}', "'shares'"),
        ("s.json", "7", "list of shares"),
        ("s.csv", "a,b\n1,2\n", "no column expert, share"),
        ("s.csv", "expert,share\n", "no rows"),
        ("s.csv", "expert,share\n0,1\n0,2\n", "line 3: expert 0 of layer 0 appears twice"),
        ("s.csv", "expert,share\n0,1\n2,2\n", "expert 1 is missing"),
        ("s.csv", "expert,share\n0,1\nx,2\n", "line 3: expert must be a whole number from 0, not 'x'"),
        ("s.csv", "expert,share\n0,1\n1,\n", "line 3: share '' is not a number"),
        ("s.csv", "layer,expert,share\n1,0,1\n1,1,1\n", "layers must be 0 to 0; 0 is missing"),
    ],
)
def test_bad_files_name_what_is_wrong(tmp_path: Path, name: str, content: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        parse(str(file))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:nan", "zipf:11"])
def test_a_bad_exponent(text: str) -> None:
    with pytest.raises(UsageError, match="ALPHA must be a number from 0"):
        parse(text)


@pytest.mark.parametrize(
    ("routers", "layers", "warned"),
    [
        ([], (), "no router of a mixture of experts was seen"),
        ([{"experts": 8}], ((1.0,) * 64,), "it has shares for [64] experts, the routers seen have [8]"),
        ([{"experts": 8}, {"experts": 64}], ((1.0,) * 64,), None),
        ([{"experts": 8}], (), None),
    ],
)
def test_a_routing_without_effect_is_warned_about(
    routers: list[dict[str, int]], layers: tuple[tuple[float, ...], ...], warned: str | None
) -> None:
    seen = tuple(Router(experts=router["experts"]) for router in routers)
    before = Summary(steps=(StepTime(index=0, virtual_s=1.0),), moe_routers=seen)
    summary = MoeRouting(mode="shares" if layers else "zipf", layers=layers).note(before, "x")
    assert summary.moe_routing == "x"
    assert [warned is not None and warned in text for text in summary.warnings] == [True] * (
        warned is not None
    )


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="'skewed': no such file; give balanced, zipf:ALPHA"):
        parse("skewed")
