"""Stands for `ssh`, `pdsh` and `hostname` in a job that starts work on its hosts by itself.

The hosts of a hostfile do not exist; each is one of the simulated nodes. What a launcher wants to run there
(DeepSpeed's launcher through pdsh, Open MPI's daemon through ssh, a site's own script) runs on this machine
with PHANTOM_NODE set to the number of that node: the order of pdsh's list, or for ssh that of the names.

Runs by itself, as `python -I remote_shell.py ssh|pdsh|hostname ARGUMENTS`; the launcher puts scripts of those
names first on PATH (phantom/launch/shims.py). Needs PHANTOM_NODES and PHANTOM_HOSTS (a file of names).
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

FAILED = 255
"""What ssh ends with for an error of its own."""

SHELL = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"

PATIENCE_S = 5.0
"""So long an ssh waits for those to other hosts, in real time, before it numbers its own."""

_SSH_OPTIONS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
_PDSH_OPTIONS_WITH_VALUE = frozenset("wxlfRtuMjgFX")


def main(argv: list[str]) -> int:
    """Runs the program that `argv[0]` names; returns its exit status."""
    tool, arguments = argv[0], argv[1:]
    if tool == "hostname":
        return _hostname(arguments)
    if tool == "pdsh":
        hosts, words = parse_pdsh(arguments)
        return _everywhere(hosts, words)
    host, words = parse_ssh(arguments)
    if host is None:
        _fail("usage: ssh [options] HOST COMMAND")
    if not words:
        _fail(f"ssh {host} without a command: there is no terminal on a simulated host")
    if words[0] == "hostname" and _reaches():
        os.environ["PHANTOM_HOST"] = host
        return _hostname(words[1:])
    return _run(_start(host, node_of(host) if _reaches() else 0, " ".join(words)))


def parse_ssh(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Splits ssh's arguments into the host (without the user) and the words of the command."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        text = arguments[at]
        at += 1
        if text == "--":
            break
        if text[-1] in _SSH_OPTIONS_WITH_VALUE and not _has_value(text, _SSH_OPTIONS_WITH_VALUE):
            at += 1
    if at >= len(arguments):
        return None, []
    return arguments[at].rpartition("@")[2], arguments[at + 1 :]


def parse_pdsh(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits pdsh's arguments into the hosts of -w and the words of the command."""
    at, hosts = 0, ""
    while at < len(arguments) and arguments[at].startswith("-"):
        text = arguments[at]
        at += 1
        value = text[2:]
        if text[1] in _PDSH_OPTIONS_WITH_VALUE and not value:
            value = arguments[at] if at < len(arguments) else ""
            at += 1
        if text[1] == "w":
            hosts = value
    if not hosts:
        _fail("pdsh: no hosts given (-w)")
    return expand(hosts), arguments[at:]


def _has_value(option: str, with_value: frozenset[str]) -> bool:
    """Whether an option group such as -p22 or -tp22 holds its value already."""
    for position, letter in enumerate(option[1:], 1):
        if letter in with_value:
            return position + 1 < len(option)
    return True


def expand(hosts: str) -> list[str]:
    """The names that `node[0-2,7],gpu1` stands for."""
    found = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", hosts):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        before, ranges, after = match.groups()
        for piece in ranges.split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.append(f"{before}{number:0{len(first)}d}{after}")
    return found


def nodes_of(hosts: list[str]) -> list[int]:
    """Numbers of the simulated nodes that `hosts` are; hosts that are new are numbered as they stand here."""
    nodes = int(os.environ["PHANTOM_NODES"])
    with open(os.environ["PHANTOM_HOSTS"], "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = file.read().split()
        for host in hosts:
            if host in known:
                continue
            if len(known) >= nodes:
                _fail(
                    f"host {host!r} would be node {len(known)}, but the job has {nodes} nodes "
                    f"({', '.join(known)}); give phantom run -N {len(known) + 1}, or name fewer hosts"
                )
            known.append(host)
            file.write(f"{host}\n")
        return [known.index(host) for host in hosts]


def node_of(host: str) -> int:
    """Number of the node that the host of one `ssh` is.

    A script starts several at once, in whatever order they get to run: so hosts are numbered by name, once
    as many have been named as there are nodes, or no other comes for a while.
    """
    folder = f"{os.environ['PHANTOM_HOSTS']}.named"
    os.makedirs(folder, exist_ok=True)
    mark = os.path.join(folder, host)
    if not os.path.exists(mark):
        with open(mark, "w", encoding="utf-8"):
            pass
    deadline_s = time.monotonic() + PATIENCE_S
    named = os.listdir(folder)
    while len(named) < int(os.environ["PHANTOM_NODES"]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
        found = os.listdir(folder)
        if len(found) > len(named):
            deadline_s = time.monotonic() + PATIENCE_S
        named = found
        if host in _known():
            break
    nodes_of(sorted(named, key=_natural))
    return nodes_of([host])[0]


def _known() -> list[str]:
    try:
        with open(os.environ["PHANTOM_HOSTS"], encoding="utf-8") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name)]


def _start(host: str, node: int, command: str) -> subprocess.Popen[bytes]:
    if not _reaches():
        _fail(
            "this command was started once per node, and starts work on other hosts by itself; "
            "remedy: phantom run --launch once"
        )
    env = {**os.environ, "PHANTOM_NODE": str(node), "PHANTOM_HOST": host}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK"):
        env.pop(name, None)
    # The launchers' clean-up (`pkill -f launcher` on each host) would meet other jobs on this machine;
    # phantom run ends what is left of its own job.
    if command.split()[:1] == ["pkill"]:
        command = "true"
    return subprocess.Popen([SHELL, "-c", command], env=env, start_new_session=True)


def _reaches() -> bool:
    """Whether this command was started once, and starts the work of all nodes."""
    return os.environ.get("PHANTOM_REMOTE") != "no"


def _run(process: subprocess.Popen[bytes]) -> int:
    _pass_signals([process])
    status = process.wait()
    return status if status >= 0 else 128 - status


def _everywhere(hosts: list[str], words: list[str]) -> int:
    """pdsh -S: the command on all hosts at once, output behind the host's name; the largest status."""
    nodes = nodes_of(hosts) if _reaches() else [0] * len(hosts)
    processes = []
    for number, (host, node) in enumerate(zip(hosts, nodes)):
        text = " ".join(words).replace("%n", str(number)).replace("%h", host)
        processes.append(_start(host, node, text))
    _pass_signals(processes)
    statuses: list[int] = []
    waiting = [threading.Thread(target=lambda p=p: statuses.append(_run_quietly(p))) for p in processes]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    return max(statuses)


def _run_quietly(process: subprocess.Popen[bytes]) -> int:
    status = process.wait()
    return status if status >= 0 else 128 - status


def _pass_signals(processes: list[subprocess.Popen[bytes]]) -> None:
    def passed_on(number: int, _: FrameType | None) -> None:
        for process in processes:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, passed_on)


def _hostname(arguments: list[str]) -> int:
    address = any(text.startswith("-") and set(text[1:]) & {"i", "I"} for text in arguments)
    name = os.environ.get("PHANTOM_HOST") or f"node{os.environ.get('PHANTOM_NODE', '0')}"
    sys.stdout.write(("127.0.0.1 " if address else name) + "\n")
    return 0


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"phantom: {text}\n")
    sys.exit(FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
