"""Draws a cluster's topology as text and as SVG, with what `[degrade]` slows or cuts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from netsim.cluster.spec import ClusterSpec
from netsim.fabric.topology import Topology

LAYERS = ("spine", "leaf", "nic", "interconnect", "cpu", "pcie", "gpu", "nvswitch")
COLORS = {
    "spine": "#7b8794",
    "leaf": "#486581",
    "nic": "#2f855a",
    "interconnect": "#a0aec0",
    "cpu": "#975a16",
    "pcie": "#b7791f",
    "gpu": "#2b6cb0",
    "nvswitch": "#553c9a",
}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 62, 24, 10, 74


@dataclass(frozen=True)
class Edge:
    """Both directions of a cable; `nominal` and `capacity` in bytes/s of the slower direction."""

    ends: tuple[str, str]
    capacity: float
    nominal: float


def rate(bytes_per_s: float) -> str:
    """A bandwidth for people."""
    return f"{bytes_per_s / 1e9:.4g} GB/s"


def layer_of(name: str) -> str:
    """Row of the drawing that a node belongs to."""
    local = name.rsplit("/", 1)[-1]
    for layer in LAYERS:
        if local.startswith(layer):
            return layer
    return "nvswitch" if local.startswith("nvlink") else "leaf"


def edges_of(topology: Topology) -> list[Edge]:
    """Undirected edges in the order in which the topology was built, bundles left out."""
    found: dict[tuple[str, str], Edge] = {}
    for link in topology.links:
        if link.bundle:
            continue
        a, b = link.name.split("->")
        factor = topology.wiring.degrade_factor(a, b)
        nominal = link.capacity_bytes_per_s / factor if factor > 0 else 0.0
        known = found.get((b, a))
        if known is None:
            found[a, b] = Edge((a, b), link.capacity_bytes_per_s, nominal)
        elif link.capacity_bytes_per_s < known.capacity:
            found[b, a] = Edge((b, a), link.capacity_bytes_per_s, max(nominal, known.nominal))
    return list(found.values())


def _is_slowed(topology: Topology, edge: Edge) -> bool:
    a, b = edge.ends
    return min(topology.wiring.degrade_factor(a, b), topology.wiring.degrade_factor(b, a)) < 1.0


def text(cluster: ClusterSpec, *, nodes: int = 2, gpus_per_node: int | None = None) -> str:
    """Return the topology of `nodes` servers as lines of text: one server in full, then the fabric."""
    gpus = gpus_per_node or cluster.node.gpus
    topology = Topology(cluster, nodes=nodes, gpus_per_node=gpus)
    edges = edges_of(topology)
    lines = [f"{cluster.name}: {nodes} server{'s' if nodes > 1 else ''} x {gpus} {cluster.gpu.name}"]
    if cluster.description:
        lines.append(cluster.description)
    lines += ["", "node0 (the other servers are wired alike)"]
    children: dict[str, list[tuple[str, Edge]]] = {}
    for edge in edges:
        a, b = edge.ends
        if a.startswith("node0/") and b.startswith("node0/"):
            upper, lower = (b, a) if LAYERS.index(layer_of(b)) < LAYERS.index(layer_of(a)) else (a, b)
            if layer_of(lower) == "nic" or (layer_of(upper) == "nic" and layer_of(lower) == "pcie"):
                upper, lower = (lower, upper) if layer_of(lower) == "pcie" else (upper, lower)
            if layer_of(lower) != "nvswitch":
                children.setdefault(upper, []).append((lower, edge))
    beside = _beside(topology, edges)
    root = "node0/interconnect"
    for cpu, edge in children.get(root, []):
        other = f", to the other sockets {rate(edge.capacity)}" if cluster.node.sockets > 1 else ""
        lines.append(f"  {cpu.split('/')[1]}{other}")
        for switch, up in children.get(cpu, []):
            lines.append(f"    {switch.split('/')[1]}  {rate(up.capacity)}{_mark(topology, up)}")
            for leaf, down in children.get(switch, []):
                lines.append(
                    f"      {leaf.split('/')[1]:<6} {rate(down.capacity)}{_mark(topology, down)}"
                    f"{beside.get(leaf, '')}"
                )
    lines += ["", *_fabric_lines(topology, edges)]
    slowed = [e for e in edges if _is_slowed(topology, e)]
    if slowed:
        lines += ["", "degraded links"]
        for edge in slowed[:40]:
            state = "failed" if edge.capacity <= 0 else f"{rate(edge.capacity)} of {rate(edge.nominal)}"
            lines.append(f"  {' <-> '.join(edge.ends)}: {state}")
        if len(slowed) > 40:
            lines.append(f"  and {len(slowed) - 40} more")
    for flow in cluster.degrade.background:
        lines.append(
            f"  background: rank {flow.source} -> {flow.destination} {rate(flow.bandwidth_bytes_per_s)}"
        )
    return "\n".join(lines)


def _mark(topology: Topology, edge: Edge) -> str:
    if not _is_slowed(topology, edge):
        return ""
    return "  FAILED" if edge.capacity <= 0 else "  degraded"


def _beside(topology: Topology, edges: Iterable[Edge]) -> dict[str, str]:
    """What each GPU and NIC of the first server is wired to besides PCIe."""
    result: dict[str, str] = {}
    for edge in edges:
        for name, other in (edge.ends, edge.ends[::-1]):
            if (
                not name.startswith("node0/")
                or layer_of(name) not in ("gpu", "nic")
                or layer_of(other) == "pcie"
            ):
                continue
            label = "NVLink" if layer_of(name) == "gpu" else "port"
            target = other.split("/")[-1] if other.startswith("node0/") else other
            result[name] = f", {label} {rate(edge.capacity)} to {target}{_mark(topology, edge)}"
    return result


def _fabric_lines(topology: Topology, edges: list[Edge]) -> list[str]:
    fabric = topology.cluster.fabric
    if fabric.kind == "none":
        return ["no fabric between servers"]
    outside = [e for e in edges if not any("/" in end for end in e.ends)]
    switches = sorted({end for e in edges for end in e.ends if "/" not in end}, key=_natural)
    lines = [f"fabric: {fabric.kind}, {fabric.routing}, {len(switches)} switches"]
    by_switch: dict[str, list[Edge]] = {}
    for edge in edges:
        for end in edge.ends:
            if "/" not in end:
                by_switch.setdefault(end, []).append(edge)
    for switch in [s for s in switches if layer_of(s) == "leaf"][:16]:
        ports = [e for e in by_switch[switch] if any("/" in end for end in e.ends)]
        up = [e for e in by_switch[switch] if e in outside]
        line = f"  {switch}: {len(ports)} NICs, {rate(sum(e.capacity for e in ports))}"
        if up:
            line += f"; {len(up)} links to other switches, {rate(sum(e.capacity for e in up))}"
        lines.append(line)
    leaves = sum(layer_of(s) == "leaf" for s in switches)
    if leaves > 16:
        lines.append(f"  and {leaves - 16} more")
    return lines


def _natural(name: str) -> tuple[str, int]:
    digits = "".join(c for c in name if c.isdigit())
    return name.rstrip("0123456789."), int(digits or 0)


def svg(cluster: ClusterSpec, *, nodes: int = 2, gpus_per_node: int | None = None) -> str:
    """Return the topology of `nodes` servers (at most 16 are drawn) as an SVG document."""
    gpus = gpus_per_node or cluster.node.gpus
    nodes = min(nodes, 16)
    topology = Topology(cluster, nodes=nodes, gpus_per_node=gpus)
    edges = edges_of(topology)
    names = list(dict.fromkeys(end for edge in edges for end in edge.ends))
    place, width, height = _layout(names, nodes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{escape(cluster.name)}: {nodes} x {gpus} '
        f"{escape(cluster.gpu.name)}</text>",
    ]
    for edge in edges:
        (x1, y1), (x2, y2) = place[edge.ends[0]], place[edge.ends[1]]
        slowed = _is_slowed(topology, edge)
        color = "#e53e3e" if slowed else "#a0aec0"
        dash = ' stroke-dasharray="4 3"' if edge.capacity <= 0 else ""
        title = f"{edge.ends[0]} - {edge.ends[1]}: {rate(edge.capacity)}"
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
            f'stroke-width="{2.2 if slowed else 0.9}"{dash}><title>{escape(title)}</title></line>'
        )
    for name in names:
        x, y = place[name]
        label = name.split("/")[-1]
        parts.append(
            f'<rect x="{x - BOX_WIDTH / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" '
            f'rx="4" fill="{COLORS[layer_of(name)]}"><title>{escape(name)}</title></rect>'
            f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" fill="white">{escape(label)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _layout(names: list[str], nodes: int) -> tuple[dict[str, tuple[float, float]], int, int]:
    """Servers side by side, one row per layer; switches spread over the whole width."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name in names:
        owner = name.split("/")[0] if "/" in name else ""
        rows.setdefault((owner, layer_of(name)), []).append(name)
    servers = sorted({owner for owner, _ in rows if owner.startswith("node")}, key=_natural)
    widest = max((len(v) for (owner, _), v in rows.items() if owner), default=1)
    shared = max(
        (len(v) for (owner, _), v in rows.items() if not owner or owner.startswith("domain")), default=1
    )
    step = BOX_WIDTH + GAP_X
    block = max(widest * step + 2 * GAP_X, shared * step / max(1, nodes))
    width = int(block * max(1, len(servers)) + 40)
    used = [layer for layer in LAYERS if any(key[1] == layer for key in rows)]
    top = {layer: 60 + i * GAP_Y for i, layer in enumerate(used)}
    place: dict[str, tuple[float, float]] = {}
    for (owner, layer), members in rows.items():
        inside = owner in servers
        left = 20 + (servers.index(owner) * block if inside else 0)
        span = block if inside else width - 40
        members = members if inside else sorted(members, key=_natural)
        for i, name in enumerate(members):
            place[name] = (left + span * (i + 0.5) / len(members), top[layer])
    return place, width, 60 + GAP_Y * len(used)
