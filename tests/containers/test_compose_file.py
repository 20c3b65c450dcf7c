"""The docker-compose file that `phantom compose` writes; nothing here needs Docker."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from phantom.cli.compose import FORWARDED, NOT_FOR_CONTAINERS, compose
from phantom.cli.run import run
from phantom.launch.compose import HEADER
from phantom.launch.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text("")
    monkeypatch.chdir(job)
    for name in list(os.environ):
        if name.startswith(("NCCL_", "TORCH_NCCL_", "PYTORCH_", "CUDA_")):
            monkeypatch.delenv(name)
    return job


def write(*arguments: str) -> Result:
    result = CliRunner().invoke(compose, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def written(*arguments: str) -> dict[str, Any]:
    write(*arguments)
    return dict(yaml.safe_load(Path("docker-compose.yml").read_text()))


def test_a_service_per_simulated_server(folder: Path) -> None:
    file = written(
        "--cluster", "a100-dgx", "-N", "3", "-G", "4", "--steps", "5", "--", "torchrun", "train.py"
    )
    services = file["services"]
    assert list(services) == ["simulator", "server-0", "server-1", "server-2"]
    assert all(service["hostname"] == name for name, service in services.items())
    command = services["simulator"]["command"]
    assert command[0] == "simulator"
    assert command[-3:] == ["--", "torchrun", "train.py"]
    made = run.make_context("run", command[1:])
    wanted = {"cluster": "a100-dgx", "nodes": 3, "gpus_per_node": 4, "steps": 5, "kernels": "auto"}
    assert {name: made.params[name] for name in wanted} == wanted
    assert services["server-2"]["command"] == ["server", "2"]
    assert services["server-0"]["depends_on"] == {"simulator": {"condition": "service_started"}}
    assert services["server-0"]["shm_size"] == "1gb"
    assert services["server-0"]["healthcheck"]["test"][-1] == "server"


def test_containers_are_closed_in_and_not_root(folder: Path) -> None:
    file = written("-N", "2", "-G", "2", "train.py")
    assert file["networks"] == {"cluster": {"internal": True}}
    for service in file["services"].values():
        assert service["networks"] == ["cluster"]
        assert service["cap_drop"] == ["ALL"]
        assert not {"ports", "privileged", "network_mode", "pid"} & set(service)
        assert not any("docker.sock" in str(mount) for mount in service["volumes"])
        uid = os.getuid() or 1000
        assert service["user"].startswith(f"${{PHANTOM_UID:-{uid}}}")


def test_every_container_sees_job_and_results(folder: Path) -> None:
    file = written("-N", "2", "-G", "2", "--results", "out", "train.py")
    for name, service in file["services"].items():
        mounts = {mount["target"]: mount for mount in service["volumes"]}
        assert mounts["/results"]["source"] == "./out"
        assert mounts["/job"]["source"] == "."
        assert mounts["/job"].get("read_only", False) == (name == "simulator")
        assert not any(mount["bind"]["create_host_path"] for mount in mounts.values())
    assert (folder / "out").stat().st_uid == (os.getuid() or 1000)


def test_one_build_makes_the_image_of_all(folder: Path) -> None:
    services = written(
        "-N",
        "2",
        "-G",
        "2",
        "--extras",
        "frameworks torchtitan==0.2.2",
        "--compiler",
        "--image",
        "mine",
        "train.py",
    )["services"]
    build = services["simulator"]["build"]
    assert Path(build["context"]) == ROOT
    assert build["args"] == {
        "BASE_IMAGE": "${BASE_IMAGE:-python:3.11-slim}",
        "EXTRAS": "frameworks torchtitan==0.2.2",
        "COMPILER": "1",
    }
    assert all(service["image"] == "${PHANTOM_IMAGE:-mine}" for service in services.values())
    assert "build" not in services["server-0"]


def test_dollar_signs_survive(folder: Path) -> None:
    services = written("-N", "1", "-G", "1", "-e", "A=$B", "train.py", "--name", "x$HOME")["services"]
    assert services["simulator"]["command"][-1] == "x$$HOME"
    assert services["server-0"]["environment"]["A"] == "$$B"


def test_the_environment_of_nccl_and_allocator_goes_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("GIVEN", "1")
    monkeypatch.setenv("NOT_GIVEN", "1")
    services = written(
        "-N", "1", "-G", "1", "-e", "GIVEN", "-e", "CUDA_DEVICE_MAX_CONNECTIONS=1", "train.py"
    )["services"]
    for service in services.values():
        assert service["environment"] == {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "GIVEN": "1",
            "NCCL_ALGO": "Tree",
        }
    with pytest.raises(UsageError, match="--env MISSING"):
        write("-e", "MISSING", "train.py")


def test_files_that_options_name_are_mounted(folder: Path) -> None:
    preset = next((ROOT / "netsim").rglob("h100-dgx.toml"))
    (folder / "mine.toml").write_text(preset.read_text())
    (folder.parent / "stores").mkdir()
    store = folder.parent / "stores" / "k.sqlite"
    simulator = written("--cluster", "mine.toml", "--store", str(store), "-N", "1", "train.py")["services"][
        "simulator"
    ]
    command = simulator["command"]
    mounts = {mount["target"]: mount for mount in simulator["volumes"]}
    cluster = command[command.index("--cluster") + 1]
    assert mounts[cluster]["source"] == "./mine.toml"
    assert mounts[cluster]["read_only"]
    assert command[command.index("--store") + 1] == "/store/k.sqlite"
    assert mounts["/store"]["source"] == str(store.parent)


def test_every_option_of_a_run_is_there_but_what_containers_settle() -> None:
    names = {option.name for option in compose.params}
    assert {option.name for option in run.params} - names <= set(NOT_FOR_CONTAINERS)
    assert [option for option in run.params if option.name in names and option.name != "command"] == FORWARDED


def test_programs_of_the_image_need_not_be_here(folder: Path) -> None:
    services = written("-N", "2", "-G", "2", "--", "some-launcher", "train.py")["services"]
    assert services["simulator"]["command"][-2:] == ["some-launcher", "train.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-N", "2", "missing.py"), "script not found"),
        (("-N", "0", "train.py"), "at least 1"),
        (("-G", "9", "train.py"), "has 8 GPUs"),
        (("-N", "2", "--", "mpirun", "-np", "4", "python", "train.py"), "cannot reach other containers"),
        (("--cluster", "no-such", "train.py"), "no-such"),
        ((), "no command given"),
        (("../outside.py",), "is not seen in the containers"),
        (("train.py", "--data=ABSOLUTE"), "give --mount"),
    ],
)
def test_what_cannot_run_is_refused(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    outside = folder.parent / "outside.py"
    outside.write_text("")
    with pytest.raises(UsageError, match=words):
        write(*(text.replace("ABSOLUTE", str(outside)) for text in arguments))
    assert not (folder / "docker-compose.yml").exists()


def test_mounted_folders_are_seen_at_their_place(folder: Path) -> None:
    data = folder.parent / "data"
    data.mkdir()
    (data / "x.bin").write_text("")
    services = written("-N", "1", "--mount", str(data), "train.py", f"--data={data}/x.bin")["services"]
    for service in services.values():
        mounts = {mount["target"]: mount for mount in service["volumes"]}
        assert mounts[str(data)]["source"] == str(data)
        assert mounts[str(data)]["read_only"]


def test_only_files_of_ours_are_written_over(folder: Path) -> None:
    write("-N", "1", "train.py")
    write("-N", "2", "train.py")
    assert len(yaml.safe_load((folder / "docker-compose.yml").read_text())["services"]) == 3
    (folder / "docker-compose.yml").write_text("services: {}\n")
    with pytest.raises(UsageError, match="not written by phantom compose"):
        write("train.py")


def test_large_files_stay_small_by_sharing(folder: Path) -> None:
    write("-N", "64", "-G", "8", "train.py")
    text = (folder / "docker-compose.yml").read_text()
    assert text.startswith(HEADER)
    assert len(text.splitlines()) < 64 * 4 + 90
    assert len(yaml.safe_load(text)["services"]) == 65


def test_the_projects_own_example_is_what_the_command_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committed = (ROOT / "docker-compose.yml").read_text()
    command = committed.splitlines()[0].removeprefix(f"{HEADER}:").split()[2:]
    monkeypatch.chdir(ROOT)
    made = write("--file", "-", *command).stdout
    user = "${PHANTOM_UID:-%d}:${PHANTOM_GID:-%d}"
    made = made.replace(user % (os.getuid(), os.getgid()), user % (1000, 1000))
    assert made.splitlines()[1:] == committed.splitlines()[1:]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "containers" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_roles_of_a_container(tmp_path: Path) -> None:
    entry = _module("entrypoint")
    (tmp_path / "phantom-run-1").mkdir()
    out = entry.run_folder(tmp_path)
    assert out == tmp_path / "phantom-run-2"
    assert out.is_dir()
    command = entry.simulator(["--steps", "3", "--", "torchrun", "t.py"], out=out)
    made = run.make_context("run", command[2:])
    assert made.params["await_nodes"] == "0.0.0.0:5291"
    assert made.params["out"] == out
    assert made.params["command"] == ("torchrun", "t.py")
    from phantom.cli.node import node

    joined = node.make_context("node", entry.server("3")[2:]).params
    assert (joined["join"], joined["number"]) == ("simulator:5291", 3)


def test_health_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket

    entry = _module("entrypoint")
    monkeypatch.setattr(entry, "READY", tmp_path / "joined")
    assert not entry.is_healthy("server")
    (tmp_path / "joined").touch()
    assert entry.is_healthy("server")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(entry, "PORT", server.getsockname()[1])
        assert entry.is_healthy("simulator")
    assert not entry.is_healthy("simulator")


def test_extras_and_packages_become_requirements() -> None:
    made = _module("requirements").requirements(
        {"dependencies": ["torch>=2.13", "grpcio"], "optional-dependencies": {"frameworks": ["a==1", "b"]}},
        ["frameworks", "torchtitan==0.2.2"],
    )
    assert made == ["setuptools>=70", "wheel", "torch>=2.13", "grpcio", "a==1", "b", "torchtitan==0.2.2"]
