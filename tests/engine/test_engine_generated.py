"""What is generated from the schema is what stands in the repository."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest

from phantom.wire import schema
from phantom.wire.generate import GENERATED, ROOT


@pytest.mark.parametrize(("name", "generate"), GENERATED.items())
def test_generated_files_are_fresh(name: str, generate: Callable[[], str]) -> None:
    assert (ROOT / name).read_text() == generate(), f"{name} is stale: run python -m phantom.wire.generate"


@pytest.mark.parametrize("union", [schema.RankRecord, schema.EngineRecord])
def test_numbers_are_unique(union: object) -> None:
    numbers = [record.__struct_config__.tag for record in get_args(union)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_every_number_has_a_range() -> None:
    for record in (*get_args(schema.RankRecord), *get_args(schema.EngineRecord)):
        for field in msgspec.structs.fields(record):
            assert field.type is not int, f"{record.__name__}.{field.name}"
            assert field.type is not str, f"{record.__name__}.{field.name}"
