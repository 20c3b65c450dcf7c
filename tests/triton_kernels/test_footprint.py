"""What is counted in Triton IR equals what was counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpose.triton.footprint import footprint, sampled_places, written_arguments
from interpose.triton.ir import Function, Type, UnreadableIr, parse_type, read_functions, without_locations

HERE = Path(__file__).parent


def load(name: str) -> dict[str, Function]:
    return read_functions((HERE / name).read_text())


def nobody_knows(position: int) -> None:
    return None


def test_a_product_moves_every_tile_once_per_program_and_trip() -> None:
    m, n, k = 4096, 2048, 1024
    counts = footprint(
        load("product.ttir"),
        "mm",
        grid=(m // 128, n // 128, 1),
        arguments=[None, None, None, m, n, k, k, n, n],
        count_of=nobody_knows,
    )
    programs = m // 128 * (n // 128)
    assert counts.accesses[0].read_bytes == programs * 128 * k * 2
    assert counts.accesses[1].read_bytes == programs * 128 * k * 2
    assert counts.accesses[2].written_bytes == m * n * 2
    assert counts.accesses[2].written_sector_bytes == m * n * 2
    assert dict(counts.dot_flops) == {"bf16": 2.0 * m * n * k}
    assert counts.rounds == k // 64
    assert counts.unknown_loops == 0
    assert counts.written == {2}


def test_a_mask_leaves_out_what_lies_beyond_the_edge() -> None:
    # K = 96: the second trip reads half a tile of the first operand.
    counts = footprint(
        load("product.ttir"),
        "mm",
        grid=(1, 1, 1),
        arguments=[None, None, None, 128, 128, 96, 96, 128, 128],
        count_of=nobody_knows,
    )
    assert counts.accesses[0].read_bytes == 128 * 96 * 2
    assert counts.accesses[1].read_bytes == 128 * 128 * 2


def test_strided_rows_fetch_whole_sectors() -> None:
    # Columns of the second operand lie 3 elements apart from what a dense layout has: rows stay dense.
    dense = footprint(
        load("product.ttir"),
        "mm",
        grid=(1, 1, 1),
        arguments=[None, None, None, 128, 128, 64, 64, 128, 128],
        count_of=nobody_knows,
    )
    odd = footprint(
        load("product.ttir"),
        "mm",
        grid=(1, 1, 1),
        arguments=[None, None, None, 128, 128, 64, 64, 129, 128],
        count_of=nobody_knows,
    )
    assert dense.accesses[1].read_sector_bytes == 64 * 128 * 2
    # 63 of 64 rows start inside a sector and touch one more.
    assert odd.accesses[1].read_sector_bytes > dense.accesses[1].read_sector_bytes
    assert odd.accesses[1].read_bytes == dense.accesses[1].read_bytes


@pytest.mark.parametrize("columns", [256, 512, 4096, 1 << 20])
def test_a_while_loop_is_followed_to_its_end(columns: int) -> None:
    counts = footprint(
        load("sum_rows.ttir"),
        "red",
        grid=(1000, 1, 1),
        arguments=[None, None, columns],
        count_of=nobody_knows,
    )
    assert counts.accesses[0].read_bytes == 1000 * columns * 4
    assert counts.accesses[1].atomic_bytes == 4000
    assert counts.written == {1}
    assert counts.rounds == columns // 256


def test_a_loop_whose_end_nobody_knows_is_reported() -> None:
    counts = footprint(
        load("sum_rows.ttir"), "red", grid=(8, 1, 1), arguments=[None, None, None], count_of=nobody_knows
    )
    assert counts.unknown_loops > 0


def test_an_empty_grid_does_nothing() -> None:
    counts = footprint(
        load("sum_rows.ttir"), "red", grid=(0, 1, 1), arguments=[None, None, 4], count_of=nobody_knows
    )
    assert not counts.accesses


def test_written_arguments_need_no_launch() -> None:
    assert written_arguments(load("product.ttir"), "mm") == {2}
    assert written_arguments(load("sum_rows.ttir"), "red") == {1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i32", Type("i32")),
        ("tensor<128x64xbf16>", Type("bf16", (128, 64))),
        ("!tt.ptr<f32>", Type("f32", (), True)),
        ("tensor<16x!tt.ptr<f8E4M3FN>>", Type("f8E4M3FN", (16,), True)),
        ("!tt.tensordesc<tensor<64x32xf16>>", Type("f16", (64, 32), True)),
        ("!tt.tensordesc<64x32xf16>", Type("f16", (64, 32), True)),
    ],
)
def test_types(text: str, expected: Type) -> None:
    assert parse_type(text) == expected


def test_item_sizes() -> None:
    assert [Type(name).item_bytes for name in ("i1", "i8", "f8E5M2", "bf16", "f32", "i64")] == [
        1,
        1,
        1,
        2,
        4,
        8,
    ]


def test_locations_may_hold_quotes_and_parentheses() -> None:
    text = '%a = tt.load %p : f32 loc(callsite("x)"("f (1).py":3:4) at #loc2)) end'
    assert without_locations(text) == "%a = tt.load %p : f32 end"


@pytest.mark.parametrize(
    "text", ["", "module {\n}", "tt.func public @f(%a: i32) {\n%b = arith.addi %a, %a : i32"]
)
def test_what_is_no_triton_ir_is_refused(text: str) -> None:
    with pytest.raises(UnreadableIr):
        read_functions(text)


@pytest.mark.parametrize("grid", [(24, 8, 1), (1, 40, 30), (1000, 1, 1), (5, 1, 1), (64, 64, 64)])
def test_sampled_places_lie_in_the_grid_and_cover_a_short_x_evenly(grid: tuple[int, int, int]) -> None:
    for most in (4, 64):
        places = sampled_places(grid, most)
        assert len(set(places)) <= most
        assert all(0 <= at < size for place in places for at, size in zip(place, grid))
    seen = [x for x, _, _ in places]
    if grid[0] <= 64:
        assert {seen.count(x) for x in range(grid[0])} == {len(places) // grid[0]}
