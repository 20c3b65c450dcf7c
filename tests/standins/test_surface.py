"""Every name that a library's version makes importable is there; what is not covered says so when called."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from interpose.standins import registry
from interpose.standins.surface import NotCovered
from interpose.standins.surfaces import model
from interpose.standins.surfaces.model import Class, Function
from interpose.standins.surfaces.objects import signature


def _modules(library: str) -> Iterator[tuple[ModuleType, model.ModuleSurface]]:
    for name, listed in model.load(library).modules.items():
        yield importlib.import_module(name), listed


def _is_elsewhere(error: ImportError) -> bool:
    """Whether what is missing belongs to another library, as it would with the real one."""
    missing = (error.name or "").partition(".")[0]
    return missing != "" and missing not in registry.BY_MODULE


@pytest.mark.parametrize("library", registry.NAMES)
def test_every_listed_name_can_be_imported(library: str, standins: None) -> None:
    lacking = []
    count = 0
    for module, listed in _modules(library):
        for name in listed.names:
            count += 1
            try:
                getattr(module, name)
            except AttributeError as error:
                cause = error.__cause__
                if not isinstance(cause, ImportError) or not _is_elsewhere(cause):
                    lacking.append(f"{module.__name__}.{name}: {error}")
            except Exception as error:
                lacking.append(f"{module.__name__}.{name}: {type(error).__name__} {error}")
    assert not lacking, "\n".join(lacking)
    assert count > 5


@pytest.mark.parametrize("library", registry.NAMES)
def test_what_the_stand_in_has_takes_the_librarys_parameters(library: str, standins: None) -> None:
    lacking = []
    for module, listed in _modules(library):
        for name, entry in listed.names.items():
            own = vars(module).get(name)
            if not isinstance(entry, Function) or entry.parameters is None or own is None:
                continue
            if getattr(own, "__signature__", None) is not None or not inspect.isroutine(own):
                continue
            here = inspect.signature(own).parameters
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in here.values()):
                continue
            listed_ones = signature(entry.parameters).parameters.values()
            named = [p.name for p in listed_ones if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            missing = [name for name in named if name not in here]
            if missing:
                lacking.append(f"{module.__name__}.{name}: {missing}")
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize("library", registry.NAMES)
def test_versions_of_list_and_registry_agree(library: str) -> None:
    surface = model.load(library)
    about = next(stand_in for stand_in in registry.STAND_INS if stand_in.name == library)
    assert surface.version == about.version
    assert {name.partition(".")[0] for name in surface.modules} == set(about.modules)


def test_names_that_public_scripts_take_without_a_guard(standins: None) -> None:
    """nanotron, OpenRLHF, verl, Megatron-LM."""
    for module, names in {
        "flash_attn.flash_attn_interface": (
            "_flash_attn_varlen_forward",
            "_flash_attn_varlen_backward",
            "_flash_attn_forward",
            "_flash_attn_backward",
        ),
        "flash_attn.modules.mha": ("flash_attn_varlen_kvpacked_func", "MHA"),
        "flash_attn.bert_padding": ("rearrange", "index_first_axis"),
        "flash_attn.utils.distributed": ("all_gather",),
        "flash_attn.ops.triton.cross_entropy": ("cross_entropy_loss",),
        "grouped_gemm": ("ops", "backend"),
        "deep_ep": ("Buffer", "EventOverlap"),
    }.items():
        found: Any = importlib.import_module(module)
        for name in names:
            assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), (module, name)


def test_a_named_thing_refuses_when_it_is_used(standins: None) -> None:
    mha: Any = importlib.import_module("flash_attn.modules.mha")
    assert "embed_dim" in inspect.signature(mha._update_kv_cache).parameters or mha._update_kv_cache
    with pytest.raises(NotCovered, match=r"flash_attn.modules.mha.MHA: phantom's stand-in of flash-attn"):
        mha.MHA(512, 8)
    with pytest.raises(NotCovered, match=r"_update_kv_cache.*--stand-ins none"):
        mha._update_kv_cache(1, 2, 3)

    class Mine(mha.MHA):  # type: ignore[misc]  # public code inherits from what it may never make
        pass

    with pytest.raises(NotCovered):
        Mine()
    with pytest.raises(AttributeError):
        _ = mha.MHA.there_is_none
    with pytest.raises(ImportError, match=r"has no 'there_is_none' in flash-attn 2.8.3"):
        exec("from flash_attn.modules.mha import there_is_none", {})


def test_constants_and_enumerations_are_themselves(standins: None) -> None:
    recipe: Any = importlib.import_module("transformer_engine.pytorch.constants")
    assert recipe.NVFP4_BLOCK_SCALING_SIZE == 16
    surface = model.load("xformers")
    kinds = [
        (module, name)
        for module, listed in surface.modules.items()
        for name, entry in listed.names.items()
        if isinstance(entry, model.Enumeration)
    ]
    for module, name in kinds:
        assert issubclass(getattr(importlib.import_module(module), name), enum.Enum)


def test_quantized_layers_of_bitsandbytes_name_the_stand_in(standins: None) -> None:
    """What QLoRA through transformers meets: its check of devices passes, the first layer says why not."""
    bnb: Any = importlib.import_module("bitsandbytes")
    assert {"cuda"}.intersection(bnb.supported_torch_devices)
    for name in ("Linear4bit", "Linear8bitLt", "Params4bit"):
        with pytest.raises(
            NotCovered, match=rf"{name}: phantom's stand-in of bitsandbytes does not cover it"
        ):
            getattr(bnb.nn, name)(16, 16)


def test_a_list_reads_what_it_writes() -> None:
    surface = model.load("causal_conv1d")
    again = model.dump(surface)
    assert (model.LISTS / "causal_conv1d.json").read_text() == again
    assert isinstance(surface.modules["causal_conv1d.causal_conv1d_interface"].names["CausalConv1dFn"], Class)
