"""Grids of a block: what FP16 does to a scale, what a grid covers, how tiles cover a weight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeprec.export.quantize_grid import FP16_MAX, GridKind, block_error, range_grid, round_scales, round_to_levels
from edgeprec.export.quantize_tiles import Int4Builder, as_blocks, tiles
from edgeprec.kernels.reference import dequantize

SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
KINDS = list(GridKind)

blocks_of_weights = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4)),
    elements=st.floats(-60000.0, 60000.0, width=32),
)


@given(hnp.arrays(np.float32, 8, elements=st.floats(-1e6, 1e6, width=32)))
def test_a_rounded_scale_is_a_usable_fp16_number(scales: npt.NDArray[np.float32]) -> None:
    """Never 0, never infinite, sign kept, and the cast to FP16 changes nothing any more."""
    rounded = round_scales(scales)
    np.testing.assert_array_equal(rounded.astype(np.float16).astype(np.float32), rounded)
    assert np.isfinite(rounded).all()
    assert (rounded != 0.0).all()
    assert (np.sign(rounded) == np.where(scales == 0.0, 1.0, np.sign(scales))).all()


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (0.0, 1.0),
        (1e-12, SMALLEST),
        (-1e-12, -SMALLEST),
        (1.4 * SMALLEST, 2 * SMALLEST),
        (3.0 * SMALLEST, 3 * SMALLEST),
        (0.1, float(np.float16(0.1))),
        (1e9, FP16_MAX),
        (-1e9, -FP16_MAX),
    ],
)
def test_scales_at_the_ends_of_fp16(scale: float, expected: float) -> None:
    """Too small becomes the smallest number, a subnormal scale never falls short, too large stops at the largest."""
    assert round_scales(np.array([scale], np.float32))[0] == np.float32(expected)


@pytest.mark.parametrize("kind", KINDS)
@given(blocks=blocks_of_weights)
def test_rounding_errs_by_at_most_half_a_step(kind: GridKind, blocks: npt.NDArray[np.float32]) -> None:
    """The grid covers the block and nothing is clipped; FP16's rounding of the scale costs 15 x 2^-11 of a step."""
    grid = range_grid(blocks, kind)
    levels = round_to_levels(blocks, grid)
    error = np.abs(levels.astype(np.float64) * grid.scales - blocks)
    assert (error <= np.abs(grid.scales) * (0.5 + 15 * 2.0**-11 + 1e-6)).all()


@pytest.mark.parametrize("kind", KINDS)
@given(blocks=blocks_of_weights)
def test_levels_stay_within_four_bits(kind: GridKind, blocks: npt.NDArray[np.float32]) -> None:
    """Levels are whole numbers of low .. low + 15, and low is what the kind allows."""
    grid = range_grid(blocks, kind)
    levels = round_to_levels(blocks, grid)
    assert (levels == np.rint(levels)).all()
    assert ((levels >= grid.lows) & (levels <= grid.lows + 15.0)).all()
    if kind is GridKind.ZERO_POINT:
        assert ((grid.lows >= -15.0) & (grid.lows <= 0.0)).all()
    else:
        assert (grid.lows == -8.0).all()
    assert kind is GridKind.SIGNED or (grid.scales > 0.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_zero_is_always_exact(kind: GridKind) -> None:
    """A weight of 0 stays 0 in every block, so pruned weights stay pruned."""
    blocks = np.random.default_rng(0).standard_normal((50, 32, 8)).astype(np.float32) + 2.0
    blocks[:, 5] = 0.0
    assert (round_to_levels(blocks, range_grid(blocks, kind))[:, 5] == 0.0).all()


@pytest.mark.parametrize("peak", [-1.0, 1.0])
def test_a_signed_grid_gives_level_minus_eight_to_the_largest_value(peak: float) -> None:
    """Whatever its sign, the largest value uses the one level more that symmetric INT4 has on one side."""
    block = np.linspace(-0.5, 0.5, 32, dtype=np.float32).reshape(1, 32, 1)
    block[0, 3, 0] = peak
    grid = range_grid(block, GridKind.SIGNED)
    assert grid.scales[0, 0, 0] == np.float32(-peak / 8.0)
    assert round_to_levels(block, grid)[0, 3, 0] == -8.0


def test_a_signed_grid_is_never_coarser_than_a_positive_one() -> None:
    """Turning a block round is done only where it makes the step smaller."""
    blocks = np.random.default_rng(1).standard_normal((40, 32, 30)).astype(np.float32)
    signed, positive = (range_grid(blocks, kind) for kind in (GridKind.SIGNED, GridKind.POSITIVE))
    assert (np.abs(signed.scales) <= positive.scales).all()
    assert (signed.scales < 0.0).any()


def test_block_error_is_the_weighted_sum_of_squares() -> None:
    """The cost that the search compares is the documented one."""
    rng = np.random.default_rng(2)
    blocks = rng.standard_normal((2, 8, 3)).astype(np.float32)
    importance = rng.random((2, 8, 1)).astype(np.float32)
    grid = range_grid(blocks, GridKind.ZERO_POINT)
    difference = blocks - round_to_levels(blocks, grid) * grid.scales
    expected = (importance * difference**2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(block_error(blocks, grid, importance), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (32, 2), (31, 3), (100, 7), (640, 1025), (4097, 5)])
@pytest.mark.parametrize("group_size", [32, 128])
def test_tiles_cover_every_weight_once(shape: tuple[int, int], group_size: int) -> None:
    """Tiles begin at whole blocks and even columns; only the last one of a column may hold a short block."""
    seen = np.zeros(shape, np.int64)
    for rows, columns in tiles(shape, group_size):
        assert rows.start % group_size == 0
        assert columns.start % 2 == 0
        assert (rows.stop - rows.start) % group_size == 0 or rows.stop - rows.start < group_size
        seen[rows, columns] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(32, 2), (70, 5), (33, 1)])
def test_the_builder_stores_what_it_is_given(kind: GridKind, shape: tuple[int, int]) -> None:
    """Packing, scales and zero points of all tiles together dequantize to level times scale."""
    weight = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    builder = Int4Builder(shape, group_size=32, kind=kind)
    expected = np.empty(shape, np.float32)
    for rows, columns in tiles(shape, 32):
        blocks = as_blocks(weight, rows, columns, 32)
        grid = range_grid(blocks, kind)
        levels = round_to_levels(blocks, grid)
        builder.put(rows, columns, levels, grid)
        expected[rows, columns] = (levels * grid.scales).reshape(rows.stop - rows.start, -1)
    np.testing.assert_array_equal(dequantize(builder.finish()), expected)
