"""The INT4 layout: where each nibble lies, and what is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeprec.errors import KernelError
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight, num_groups, pack_nibbles, unpack_nibbles

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)


def test_low_nibble_comes_first() -> None:
    """Byte j of a row holds value 2j below value 2j + 1: the bytes that ONNX and the kernels read."""
    packed = pack_nibbles(np.array([[1, 2, 15, 0, 7]], np.uint8))
    assert packed.tolist() == [[0x21, 0x0F, 0x07]]


def test_signed_values_are_twos_complement() -> None:
    """-8 is stored as 8 and -1 as 15."""
    assert pack_nibbles(np.array([[-8, -1], [7, 0]], np.int8)).tolist() == [[0xF8], [0x07]]


@given(hnp.arrays(np.int8, SHAPES, elements=st.integers(-8, 7)))
def test_signed_values_come_back(values: npt.NDArray[np.int8]) -> None:
    """Packing loses nothing, at even and odd widths."""
    np.testing.assert_array_equal(unpack_nibbles(pack_nibbles(values), n=values.shape[1], signed=True), values)


@given(hnp.arrays(np.uint8, SHAPES, elements=st.integers(0, 15)))
def test_unsigned_values_come_back(values: npt.NDArray[np.uint8]) -> None:
    """Packing loses nothing, at even and odd widths."""
    np.testing.assert_array_equal(unpack_nibbles(pack_nibbles(values), n=values.shape[1], signed=False), values)


def test_an_odd_width_leaves_the_last_high_nibble_zero() -> None:
    """Two exports of one weight are equal byte for byte, padding included."""
    assert pack_nibbles(np.full((2, 3), 15, np.uint8))[:, -1].tolist() == [0x0F, 0x0F]


@pytest.mark.parametrize(("k", "group_size", "expected"), [(1, 32, 1), (32, 32, 1), (33, 32, 2), (576, 128, 5)])
def test_a_short_last_block_counts_as_a_block(k: int, group_size: int, expected: int) -> None:
    """K need not divide by the group size."""
    assert num_groups(k, group_size) == expected


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("has_zeros", [False, True])
def test_a_weight_knows_its_shape_and_bytes(group_size: int, has_zeros: bool) -> None:
    """K, N and the byte count follow from the arrays."""
    k, n = 100, 7
    groups = num_groups(k, group_size)
    weight = Int4Weight(
        packed=np.zeros((k, 4), np.uint8),
        scales=np.ones((groups, n), np.float16),
        zeros=np.zeros((groups, 4), np.uint8) if has_zeros else None,
        group_size=group_size,
    )
    assert (weight.k, weight.n) == (k, n)
    assert weight.num_bytes == k * 4 + groups * n * 2 + (groups * 4 if has_zeros else 0)


@pytest.mark.parametrize(
    ("packed", "scales", "zeros", "group_size", "message"),
    [
        (np.zeros((64, 4), np.uint8), np.ones((2, 8), np.float16), None, 48, "group size is 48"),
        (np.zeros((64, 4), np.int8), np.ones((2, 8), np.float16), None, 32, "expected uint8"),
        (np.zeros((64, 5), np.uint8), np.ones((2, 8), np.float16), None, 32, r"expected uint8 \[K, 4\]"),
        (np.zeros((64, 4), np.uint8), np.ones((3, 8), np.float16), None, 32, r"expected float16 \(2, 8\)"),
        (np.zeros((64, 4), np.uint8), np.ones((2, 8), np.float32), None, 32, "scales are float32"),
        (np.zeros((64, 4), np.uint8), np.ones((2, 8), np.float16), np.zeros((2, 8), np.uint8), 32, "zero points are"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    packed: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float16],
    zeros: npt.NDArray[np.uint8] | None,
    group_size: int,
    message: str,
) -> None:
    """A damaged or foreign file is met here and not inside a kernel."""
    with pytest.raises(KernelError, match=message):
        Int4Weight(packed=packed, scales=scales, zeros=zeros, group_size=group_size)
