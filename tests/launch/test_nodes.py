"""Runs whose nodes are processes of their own: `phantom run --await-nodes` and `phantom node --join`."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launch.conftest import Phantom, wait_until_gone
from launch.fake_simulator import FakeSimulator, hello_of
from launch.test_run import HELLO, WAITING
from phantom.launch.errors import UsageError
from phantom.launch.link import LINE_LIMIT_BYTES, BadMessage, Link
from phantom.launch.node import own_number
from phantom.launch.node_messages import FROM_NODE, PROTOCOL, NodeJob, shown
from phantom.launch.nodes import NodeAgents, split_address
from phantom.launch.ports import free_ports

Started = tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]


@pytest.fixture
def spread(phantom: Phantom) -> Callable[..., Started]:
    """Starts a run of two nodes and the nodes."""

    def start(*command: str, nodes: int = 2, gpus: int = 2) -> Started:
        where = f"127.0.0.1:{free_ports(1)[0]}"
        run = phantom.start(
            "run", "--await-nodes", where, "-N", "2", "-G", str(gpus), "--out", "out", *command
        )
        joined = [
            phantom.start("node", "--join", where, "--node", str(number), "--address", "127.0.0.1")
            for number in range(nodes)
        ]
        return run, joined

    return start


def summary(phantom: Phantom) -> dict[str, Any]:
    return dict(json.loads((phantom.folder / "out" / "summary.json").read_text()))


@pytest.mark.parametrize("launcher", [(), ("--", "torchrun")])
def test_every_node_starts_its_share(
    phantom: Phantom, simulator: FakeSimulator, spread: Callable[..., Started], launcher: tuple[str, ...]
) -> None:
    run, nodes = spread(*launcher, phantom.script("train.py", HELLO), "--lr", "1")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert "node 0" in err
    assert "node 1" in err
    assert "total 4" in out
    assert [node.wait(timeout=30) for node in nodes] == [0, 0]
    places = [hello_of(simulator, rank) for rank in range(4)]
    assert [(place.node, place.local_rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for rank in range(4):
        assert "total 4" in (phantom.folder / "out" / "ranks" / f"{rank}.log").read_text()
    assert summary(phantom)["status"] == "ok"
    assert not list((phantom.folder / "out").glob("launch*.log"))


def test_the_status_of_a_rank_elsewhere_is_the_jobs(phantom: Phantom, spread: Callable[..., Started]) -> None:
    failing = WAITING.replace("threading.Event", "os.environ['RANK'] == '3' and sys.exit(7)\nthreading.Event")
    run, nodes = spread(phantom.script("train.py", failing))
    _, err = run.communicate(timeout=120)
    assert run.returncode == 7
    assert "rank 3 ended with status 7" in err
    assert [node.wait(timeout=30) for node in nodes] == [0, 0]
    assert wait_until_gone(*map(int, phantom.wait_for("pids").split())) == []


def test_a_lost_node_ends_the_run_and_is_named(phantom: Phantom, spread: Callable[..., Started]) -> None:
    run, nodes = spread(phantom.script("train.py", WAITING))
    rank, child = map(int, phantom.wait_for("pids").split())
    nodes[1].kill()
    # Who watches containers stops the others then.
    nodes[0].send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGKILL, err
    assert f"{socket.gethostname()} (node 1) is lost" in err
    assert any("(node 1) is lost" in text for text in summary(phantom)["warnings"])
    assert summary(phantom)["status"] == "failed"
    assert nodes[0].wait(timeout=30) == 0
    assert wait_until_gone(rank, child) == []


def test_stopping_the_nodes_interrupts_the_run(phantom: Phantom, spread: Callable[..., Started]) -> None:
    run, nodes = spread(phantom.script("train.py", WAITING))
    pids = [int(text) for text in phantom.wait_for("pids").split()]
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM, err
    assert "interrupted by SIGTERM" in err
    assert summary(phantom)["status"] == "interrupted"
    assert [node.wait(timeout=30) for node in nodes] == [0, 0]
    assert wait_until_gone(*pids) == []


def test_a_run_that_dies_leaves_nothing_on_the_nodes(
    phantom: Phantom, spread: Callable[..., Started]
) -> None:
    run, nodes = spread(phantom.script("train.py", WAITING))
    pids = [int(text) for text in phantom.wait_for("pids").split()]
    run.kill()
    for node in nodes:
        _, err = node.communicate(timeout=60)
        assert node.returncode == 4
        assert "the run at 127.0.0.1 is gone" in err
    assert wait_until_gone(*pids) == []


def test_a_script_that_a_node_does_not_have_is_bad_usage(
    phantom: Phantom, spread: Callable[..., Started]
) -> None:
    script = phantom.script("train.py", HELLO)
    run, _ = spread(script, nodes=1)
    where = run.args[run.args.index("--await-nodes") + 1]  # type: ignore[union-attr, attr-defined, operator, index]
    elsewhere = phantom.folder / "elsewhere"
    elsewhere.mkdir()
    phantom.folder, home = elsewhere, phantom.folder
    phantom.start("node", "--join", str(where), "--node", "1", PYTHONPATH=str(home / "site"))
    phantom.folder = home
    _, err = run.communicate(timeout=120)
    assert run.returncode == 2, err
    assert "script not found: train.py" in err


def test_a_command_that_is_started_once_cannot_reach_other_nodes(phantom: Phantom) -> None:
    done = phantom.run(
        "run", "--await-nodes", "127.0.0.1:0", "-N", "2", "-G", "2", "--launch", "once", "--", "true"
    )
    assert done.returncode == 2
    assert "started once" in done.stderr


# The listening side alone

TOKEN = "what-admits-a-node"
JOB = NodeJob(command=["x.py"], launch=None, nodes=2, gpus_per_node=1, ranks_per_node=1, out="/results")


class Joined:
    """A node driven by the test."""

    def __init__(self, at: int, **hello: Any) -> None:
        decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
        self.link = Link(socket.create_connection(("127.0.0.1", at)), decoder)
        place = {"event": "hello", "protocol": PROTOCOL, "node": 0, "host": "h", "address": "a", "port": 7}
        self.send({**place, "token": TOKEN, **hello})

    def send(self, message: dict[str, Any]) -> None:
        self.link.send(message)  # type: ignore[arg-type]  # what a node may send, and what it may not

    def next(self) -> dict[str, Any] | None:
        return self.link.receive(timeout_s=10)


def listen(join_timeout_s: float) -> tuple[NodeAgents, queue.SimpleQueue[tuple[str, Any]]]:
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    agents = NodeAgents(
        listen="127.0.0.1:0",
        count=2,
        job=JOB,
        token=TOKEN,
        events=events,
        say=lambda _: None,
        join_timeout_s=join_timeout_s,
    )
    return agents, events


@pytest.fixture
def listening() -> Iterator[tuple[NodeAgents, queue.SimpleQueue[tuple[str, Any]]]]:
    agents, events = listen(60)
    yield agents, events
    agents.close()


def test_nodes_are_told_to_prepare_when_all_are_here(listening: Any, tmp_path: Path) -> None:
    agents, events = listening
    agents.environment({"PHANTOM_STATE": str(tmp_path)})
    second, first = Joined(agents.port, node=1), Joined(agents.port, node=0, address="server-0", port=29501)
    told = [node.next() for node in (first, second)]
    assert told[0] == told[1]
    assert told[0] is not None
    assert told[0]["rendezvous"] == ["server-0", 29501]
    assert (tmp_path / told[0]["mark"]).exists()
    first.send({"event": "prepared"})
    second.send({"event": "prepared"})
    assert events.get(timeout=10) == ("agent", {"event": "ready"})


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"node": 2}, "nodes 0 to 1"),
        ({"node": "x"}, "Expected `int`, got `str` - at `$.node`"),
        ({"node": -1}, "Expected `int` >= 0"),
        ({"protocol": 0}, "protocol"),
        ({"port": 1 << 20}, "at `$.port`"),
        ({"port": None}, "at `$.port`"),
        ({"host": "a\x1b[2J"}, "at `$.host`"),
        ({"address": ""}, "at `$.address`"),
        ({"token": "another"}, "token is missing or another one"),
        ({"token": ""}, "token is missing or another one"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(listening: Any, hello: dict[str, Any], words: str) -> None:
    reply = Joined(listening[0].port, **hello).next()
    assert reply is not None
    assert reply["do"] == "refuse"
    assert words in reply["reason"]


def test_a_number_is_taken_once(listening: Any) -> None:
    first = Joined(listening[0].port, host="first")
    time.sleep(0.2)
    reply = Joined(listening[0].port, host="second").next()
    first.link.close()
    assert reply is not None
    assert reply["reason"] == "first is node 0 already"


def test_nodes_that_never_join_are_named(tmp_path: Path) -> None:
    agents, events = listen(0.5)
    first = Joined(agents.port, node=0)
    time.sleep(0.2)
    agents.environment({"PHANTOM_STATE": str(tmp_path)})
    source, message = events.get(timeout=10)
    assert (source, message["event"]) == ("agent", "failed")
    assert "no server joined as node 1 within 0.5 s" in message["reason"]
    first.link.close()
    agents.close()


def test_health_checks_and_strangers_do_no_harm(listening: Any, tmp_path: Path) -> None:
    agents, _ = listening
    socket.create_connection(("127.0.0.1", agents.port)).close()
    with socket.create_connection(("127.0.0.1", agents.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"refuse" in stranger.recv(100)
    test_nodes_are_told_to_prepare_when_all_are_here(listening, tmp_path)


@pytest.mark.parametrize(
    "message",
    [
        {"event": "ended", "name": "rank 0", "status": 1 << 40},
        {"event": "ended", "name": "\x1b]0;x\x07", "status": 0},
        {"event": "orphans", "count": "many"},
        {"event": "interrupted", "signal": 0},
        {"event": "dance"},
        {},
    ],
)
def test_a_node_that_says_what_cannot_be_is_lost(
    listening: Any, tmp_path: Path, message: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    agents, events = listening
    agents.environment({"PHANTOM_STATE": str(tmp_path)})
    nodes = [Joined(agents.port, node=number) for number in range(2)]
    for node in nodes:
        assert node.next() is not None
        node.send({"event": "prepared"})
    assert events.get(timeout=10) == ("agent", {"event": "ready"})
    nodes[1].send(message)
    _, lost = events.get(timeout=10)
    assert (lost["event"], lost["node"]) == ("lost", 1)
    assert "(node 1) is lost: it sent a malformed message" in lost["reason"]
    assert "\x1b" not in capsys.readouterr().err + lost["reason"]


def test_text_of_others_is_shown_without_control_characters() -> None:
    assert shown("a\x1b[2Jb\n") == "a\\x1b[2Jb\n"


def test_lines_are_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        link = Link(server.accept()[0], FROM_NODE)
        with pytest.raises(TimeoutError):
            link.receive(timeout_s=0.05)
        writer = threading.Thread(target=lambda: _send_forever(sender), daemon=True)
        writer.start()
        with pytest.raises(BadMessage, match=str(LINE_LIMIT_BYTES)):
            link.receive(timeout_s=20)
        link.close()
        writer.join(timeout=10)


def _send_forever(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(b"x" * 65536)
    except OSError:
        connection.close()


def test_addresses_and_numbers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_address("simulator:5291", "--join") == ("simulator", 5291)
    for wrong in ("simulator", ":1", "h:x", "h:70000"):
        with pytest.raises(UsageError, match="--join"):
            split_address(wrong, "--join")
    monkeypatch.setattr(socket, "gethostname", lambda: "server-12")
    assert own_number(None) == 12
    assert own_number(0) == 0
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    with pytest.raises(UsageError, match="--node is missing"):
        own_number(None)


def test_a_port_in_use_is_bad_usage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cannot listen"):
        NodeAgents(
            listen=f"127.0.0.1:{taken.getsockname()[1]}",
            count=1,
            job=JOB,
            token=TOKEN,
            events=queue.SimpleQueue(),
            say=lambda _: None,
        )
