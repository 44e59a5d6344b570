"""The GPU layout: every nibble and scale in its place, nothing lost, sizes known beforehand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.errors import KernelError
from edgeprec.kernels import reference, torch_fallback
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight, pack_nibbles
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, device_bytes, repack

MakeWeight = Callable[..., Int4Weight]


@settings(deadline=None, max_examples=40)
@given(
    k=st.integers(1, 300),
    n=st.integers(1, 70),
    group_size=st.sampled_from(GROUP_SIZES),
    has_zeros=st.booleans(),
    seed=st.integers(0, 9),
)
def test_repacking_keeps_every_weight(
    make_weight: MakeWeight, k: int, n: int, group_size: int, has_zeros: bool, seed: int
) -> None:
    """Taking the GPU's layout apart gives the bundle's weight, exactly, over any shape."""
    weight = make_weight(k, n, group_size=group_size, has_zeros=has_zeros, seed=seed)
    packed = repack(weight)
    np.testing.assert_array_equal(torch_fallback.dequantize(packed).numpy().T, reference.dequantize(weight))
    assert packed.num_bytes == device_bytes(k=k, n=n, group_size=group_size, has_zeros=has_zeros)


def test_the_written_places() -> None:
    """Word p of a row holds inputs p, 32 + p, 64 + p, 96 + p; row 8 h + g has its scales at [g, h]."""
    k, n = 2 * TILE_K, 2 * ROWS_PER_TILE
    levels = np.random.default_rng(3).integers(0, 16, (k, n))
    scales = np.arange(k // 32 * n, dtype=np.float16).reshape(k // 32, n)
    zeros = pack_nibbles(np.zeros((k // 32, n), np.uint8))
    packed = repack(Int4Weight(packed=pack_nibbles(levels.astype(np.uint8)), scales=scales, zeros=zeros, group_size=32))
    words = packed.words.numpy().astype(np.uint16)
    for row_tile, k_tile, row, p, nibble in [(0, 0, 0, 0, 0), (1, 0, 5, 31, 3), (0, 1, 15, 7, 2), (1, 1, 8, 16, 1)]:
        expected = levels[k_tile * TILE_K + 32 * nibble + p, row_tile * ROWS_PER_TILE + row]
        assert words[row_tile, k_tile, row, p] >> (4 * nibble) & 15 == expected
    for row_tile, k_tile, g, h, block in [(0, 0, 0, 0, 0), (1, 1, 7, 1, 3), (0, 1, 2, 1, 2)]:
        expected_scale = scales[k_tile * 4 + block, row_tile * ROWS_PER_TILE + 8 * h + g]
        assert packed.scales[row_tile, k_tile, g, h, block] == expected_scale


def test_symmetric_levels_become_unsigned(make_weight: MakeWeight) -> None:
    """-8 is stored as 0 and 7 as 15, so that one zero point of 8 serves all symmetric weights."""
    levels = np.tile(np.array([[-8, 7]], np.int8), (TILE_K, 1))
    weight = Int4Weight(packed=pack_nibbles(levels), scales=np.ones((1, 2), np.float16), zeros=None, group_size=128)
    words = repack(weight).words.numpy().astype(np.uint16)[0, 0]
    assert (words[0] == 0x0000).all()
    assert (words[1] == 0xFFFF).all()


def test_padding_weighs_nothing(make_weight: MakeWeight) -> None:
    """Rows and inputs that only fill a tile have scale 0."""
    packed = repack(make_weight(130, 17, group_size=128))
    assert packed.scales.shape == (2, 2, 8, 2, 1)
    filled = torch.zeros(2, 2, 8, 2, 1, dtype=torch.bool)
    filled[0], filled[1, :, 0, 0] = True, True
    assert (packed.scales[~filled] == 0).all()
    assert (packed.scales[filled] != 0).all()


def test_place_puts_the_weight_into_an_arena(make_weight: MakeWeight) -> None:
    """The views lie in the arena, one after the other, and hold the same weight."""
    packed = repack(make_weight(200, 33, has_zeros=True))
    arena = torch.zeros(packed.num_bytes, dtype=torch.uint8)
    placed = packed.place(arena)
    assert torch.equal(torch_fallback.dequantize(placed), torch_fallback.dequantize(packed))
    start, end = arena.data_ptr(), arena.data_ptr() + arena.numel()
    assert placed.zeros is not None
    assert all(start <= tensor.data_ptr() < end for tensor in (placed.words, placed.scales, placed.zeros))


@pytest.mark.parametrize("arena", [torch.zeros(10, dtype=torch.uint8), torch.zeros(10, dtype=torch.int32)])
def test_place_refuses_another_arena(make_weight: MakeWeight, arena: torch.Tensor) -> None:
    """A wrong size or type is one sentence with both sides."""
    packed = repack(make_weight(128, 16))
    with pytest.raises(KernelError, match=f"expected uint8 of {packed.num_bytes}"):
        packed.place(arena)
