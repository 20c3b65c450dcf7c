"""Cluster files: checked and drawn."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.commands import ends_well
from fuzz.limits import FUZZ
from fuzz.mutation import changed, damaged
from netsim.cluster import list_presets, parse_cluster
from netsim.cluster.load import PRESETS
from netsim.errors import NetsimError
from netsim.network import Network
from netsim.outside import parse_toml

DEGRADED = """
[degrade.gpus]
0 = 0.5
[degrade.hosts]
0 = 0.9
[degrade.links]
"node0/gpu0<->node0/nvswitch" = 0.5
[[degrade.background]]
source = 0
destination = 1
bandwidth_bytes_per_s = 1e9
"""


def texts() -> st.SearchStrategy[bytes]:
    """The presets, some with a [degrade] section."""
    contents = [(PRESETS / f"{name}.toml").read_bytes() for name in list_presets()]
    contents += [content + DEGRADED.encode() for content in contents[:3]]
    contents += [b'base = "h100-dgx"\nname = "x"\n' + DEGRADED.encode(), b"a = " + b"[" * 100_000]
    contents += [b'name = "x"\nbase = "h100-dgx"\nnodes = ' + b"9" * 400]
    return st.sampled_from(contents)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "cluster.toml"


@FUZZ
@given(data=st.data())
def test_a_damaged_file_is_good_or_refused_in_one_sentence(file: Path, data: st.DataObject) -> None:
    file.write_bytes(data.draw(damaged(data.draw(texts()))))
    ends_well("cluster", *data.draw(st.sampled_from((["check"], ["show"], ["show", "--json"]))), str(file))


@FUZZ
@given(data=st.data())
def test_what_the_check_accepts_makes_a_network(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list_presets()))
    document: dict[str, Any] = parse_toml((PRESETS / f"{name}.toml").read_text() + DEGRADED, name)
    with contextlib.suppress(NetsimError):
        spec = parse_cluster(data.draw(changed(document)), file="t.toml")
        Network(spec, nodes=2 if spec.fabric.kind != "none" else 1, gpus_per_node=2, environment={}, seed=0)
