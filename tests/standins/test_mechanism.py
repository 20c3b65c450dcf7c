"""Stand-ins are found last, tell what they are, and explain what they do not cover."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import pytest

from interpose.standins import registry
from standins.running import run_script


def test_names_are_checked() -> None:
    assert registry.chosen("all") == set(registry.NAMES)
    assert registry.chosen("none") == frozenset()
    assert registry.chosen("apex, apex") == {"apex"}
    with pytest.raises(registry.UnknownStandIn, match=r"no stand-in of numpyy.*apex"):
        registry.chosen("apex,numpyy")


def test_probing_finds_the_stand_in_and_its_version(standins: None) -> None:
    assert importlib.util.find_spec("apex") is not None
    assert importlib.metadata.version("apex") == "0.1"
    assert "apex" in importlib.metadata.packages_distributions()["amp_C"]
    assert importlib.util.find_spec("apex.there_is_none") is None


def test_a_library_that_is_only_named_answers_imports_not_questions(standins: None) -> None:
    assert importlib.util.find_spec("mamba_ssm") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("mamba-ssm")
    assert importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn


def test_outside_a_job_nothing_is_found(standins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHANTOM_CONFIG")
    assert importlib.util.find_spec("apex") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("apex")


def test_an_installed_library_wins_wherever_its_finder_stands(
    standins: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Editable installs append their finder, so it may come after ours."""
    (tmp_path / "apex.py").write_text("REAL = True\n")
    assert importlib.util.find_spec("apex") is not None

    class Editable:
        def find_spec(self, name: str, path: object = None, target: object = None) -> object:
            return importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")

    sys.meta_path.append(Editable())
    assert importlib.import_module("apex").REAL


def test_what_is_not_covered_is_named_with_the_remedy(tmp_path: Path) -> None:
    log, summary = run_script(
        tmp_path,
        """
import torch, apex
from apex.contrib.bottleneck import Bottleneck
from apex.contrib.focal_loss import focal_loss
try:
    Bottleneck(64, 64, 64)
except NotImplementedError as error:
    print(error)
assert not hasattr(apex, "there_is_none")
try:
    from apex import there_is_none
except ImportError as error:
    print(error)
try:
    import apex.there_is_no_module
except ModuleNotFoundError as error:
    print(error)
torch.ones(1, device="cuda")
""",
    )
    for name in ("bottleneck.Bottleneck", "'there_is_none'", "'apex.there_is_no_module'"):
        line = next(line for line in log.splitlines() if name in line)
        assert "NVIDIA Apex" in line
        assert "--stand-ins none" in line
    assert summary["stand_ins"] == [{"library": "apex", "version": "0.1", "ranks": 1}]
    assert any("NVIDIA Apex is not installed" in warning for warning in summary["warnings"])


def test_none_and_a_list_switch_them_off(tmp_path: Path) -> None:
    text = """
import torch, importlib.util
torch.ones(1, device="cuda")
print("found", [n for n in ("apex", "amp_C") if importlib.util.find_spec(n)])
"""
    for value, found in (("none", "[]"), ("apex", "['apex', 'amp_C']")):
        folder = tmp_path / value
        folder.mkdir()
        log, summary = run_script(folder, text, "--stand-ins", value)
        assert f"found {found}" in log
        assert summary["stand_ins"] == []


def test_an_unknown_name_is_a_usage_error(tmp_path: Path) -> None:
    log, _ = run_script(tmp_path, "", "--stand-ins", "apexx", fails=True)
    assert "there is no stand-in of apexx" in log
