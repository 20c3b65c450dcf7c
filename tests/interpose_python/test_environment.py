"""The variables of a process, and what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from interpose import environment


def test_everything_is_read() -> None:
    variables = {
        "PHANTOM_SERVER": "h:1",
        "PHANTOM_CONFIG": '{"steps": 3}',
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "PHANTOM_NODE": "2",
        "GROUP_RANK": "0",
    }
    here = environment.read(variables)
    assert (here.server, here.config, here.rank, here.world_size) == ("h:1", {"steps": 3}, 5, 8)
    assert (here.local_rank, here.node, here.may_become_rank) == (1, 2, True)


def test_the_launchers_node_serves_where_phantoms_is_missing() -> None:
    assert environment.read({"GROUP_RANK": "3"}).node == 3


def test_configuration_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"seed": 1}')
    assert environment.read({"PHANTOM_CONFIG": f"@{tmp_path}/c.json"}).config == {"seed": 1}


def test_a_child_of_a_rank_never_becomes_one() -> None:
    assert not environment.read({"RANK": "0", "PHANTOM_RANK_PID": "1"}).may_become_rank
    assert environment.read({"RANK": "0", "PHANTOM_RANK_PID": str(os.getpid())}).may_become_rank


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "x"}, "RANK='x' is not an integer"),
        ({"PHANTOM_CONFIG": "{"}, "PHANTOM_CONFIG is not JSON"),
        ({"PHANTOM_CONFIG": "[]"}, "must be a JSON map"),
        ({"PHANTOM_CONFIG": "@/no/such"}, "cannot be read"),
    ],
)
def test_malformed_variables_are_named(variables: dict[str, str], words: str) -> None:
    with pytest.raises(environment.BadEnvironment, match=words):
        environment.read(variables)


def test_a_slow_host_takes_longer_for_everything() -> None:
    config = json.dumps({"host": {"op_ps": 1000, "view_ps": 10}, "host_factor": {"1": 0.5}})
    variables = {"PHANTOM_SERVER": "h:1", "PHANTOM_CONFIG": config}
    assert environment.read({**variables, "PHANTOM_NODE": "0"}).config["host"]["op_ps"] == 1000
    slow = environment.read({**variables, "PHANTOM_NODE": "1"}).config["host"]
    assert slow == {"op_ps": 2000, "view_ps": 20}
