"""Drawings of the topology."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from netsim.cluster import list_presets, load_cluster, parse_cluster
from netsim.fabric.draw import BOX_WIDTH, svg, text


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_can_be_drawn(name: str) -> None:
    cluster = load_cluster(name)
    nodes = 1 if cluster.fabric.kind == "none" else 2
    drawing = text(cluster, nodes=nodes)
    for g in range(cluster.node.gpus):
        assert f"gpu{g} " in drawing
    root = ET.fromstring(svg(cluster, nodes=nodes))
    labels = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert labels.count("gpu0") == nodes


def test_boxes_do_not_overlap() -> None:
    root = ET.fromstring(svg(load_cluster("h100-dgx"), nodes=4))
    boxes = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx")]
    rows: dict[str, list[float]] = {}
    for box in boxes:
        rows.setdefault(box.get("y", ""), []).append(float(box.get("x", "0")))
        assert 0 <= float(box.get("x", "0")) <= float(root.get("width", "0")) - BOX_WIDTH
    for places in rows.values():
        places.sort()
        assert all(b - a >= BOX_WIDTH for a, b in pairwise(places))


def test_what_is_degraded_is_marked() -> None:
    links = {"node0/nic1->leaf1.0": 0, "node1/gpu2": 0.5}
    cluster = parse_cluster({"name": "x", "base": "h100-dgx", "degrade": {"links": links}}, file="t")
    drawing = text(cluster)
    assert "node0/nic1 <-> leaf1.0: failed" in drawing
    assert "node1/gpu2 <-> node1/nvswitch: 184.5 GB/s of 369 GB/s" in drawing
    assert 'stroke="#e53e3e"' in svg(cluster)
