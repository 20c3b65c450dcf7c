"""ssh, pdsh and hostname as a job that reaches its simulated hosts by itself meets them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from phantom.launch import remote_shell, shims


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, str]:
    """The environment of a command that is started once on two nodes."""
    return {
        **os.environ,
        **shims.write_host_tools(tmp_path / "bin", nodes=2, path=os.environ["PATH"], once=True),
    }


def run(hosts: dict[str, str], *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=hosts | variables, capture_output=True, text=True, timeout=60)


def test_hosts_that_are_reached_at_once_are_numbered_by_name(hosts: dict[str, str]) -> None:
    options = ["-o", "PasswordAuthentication=no", "-p22"]
    for _ in range(2):
        started = [
            subprocess.Popen(
                ["ssh", *options, name, "echo", "$PHANTOM_NODE"], env=hosts, stdout=subprocess.PIPE, text=True
            )
            for name in ("user@gpu10", "gpu9")
        ]
        assert [process.communicate(timeout=60)[0] for process in started] == ["1\n", "0\n"]


def test_the_hosts_of_pdsh_are_numbered_as_listed(hosts: dict[str, str]) -> None:
    done = run(hosts, "pdsh", "-S", "-w", "zeta,alpha", "echo", "%h", "is", "%n", "and", "$PHANTOM_NODE")
    assert sorted(done.stdout.splitlines()) == ["alpha is 1 and 1", "zeta is 0 and 0"]


def test_a_host_that_is_reached_alone_is_node_0(hosts: dict[str, str]) -> None:
    assert run(hosts, "ssh", "zeta", "echo", "$PHANTOM_NODE").stdout == "0\n"


def test_a_host_too_many_is_an_error_that_names_the_remedy(hosts: dict[str, str]) -> None:
    done = run(hosts, "pdsh", "-S", "-w", "a,b,c", "true")
    assert done.returncode == 255
    assert "host 'c' would be node 2" in done.stderr
    assert "-N 3" in done.stderr


def test_the_exit_status_of_the_command_comes_back(hosts: dict[str, str]) -> None:
    assert run(hosts, "ssh", "a", "exit 7").returncode == 7
    done = run(hosts, "pdsh", "-S", "-f", "1024", "-w", "a,b", "exit", "%n")
    assert done.returncode == 1


def test_a_rank_is_nothing_that_another_host_inherits(hosts: dict[str, str]) -> None:
    assert run(hosts, "ssh", "a", "echo [$RANK]", RANK="3").stdout == "[]\n"


def test_every_simulated_host_has_its_name_and_the_loopback_address(hosts: dict[str, str]) -> None:
    assert run(hosts, "ssh", "gpu-box", "hostname").stdout == "gpu-box\n"
    assert run(hosts, "ssh", "gpu-box", "hostname", "-I").stdout.split() == ["127.0.0.1"]


def test_the_clean_up_of_a_launcher_ends_no_other_job(hosts: dict[str, str]) -> None:
    with subprocess.Popen(["sleep", "47.25"]) as other:
        assert run(hosts, "pdsh", "-w", "a", "pkill -f ", "sleep 47.25").returncode == 0
        assert other.poll() is None
        other.kill()


def test_a_command_that_runs_on_every_node_may_not_reach_out(tmp_path: Path) -> None:
    env = {
        **os.environ,
        **shims.write_host_tools(tmp_path / "bin", nodes=2, path=os.environ["PATH"], once=False),
    }
    done = run(env, "ssh", "a", "true")
    assert done.returncode == 255
    assert "--launch once" in done.stderr


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ["a", "b"]),
        ("gpu[01-03],x", ["gpu01", "gpu02", "gpu03", "x"]),
        ("n[1,3-4]-ib", ["n1-ib", "n3-ib", "n4-ib"]),
    ],
)
def test_ranges_of_hosts(text: str, names: list[str]) -> None:
    assert remote_shell.expand(text) == names
