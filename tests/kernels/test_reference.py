"""The reference kernels against loops and closed forms that a reader can check by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeprec.errors import KernelError
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight, num_groups, pack_nibbles
from edgeprec.kernels.reference import dequantize, head_statistics, int4_linear, rms_norm, swiglu


def random_weight(
    k: int, n: int, *, group_size: int, has_zeros: bool, seed: int = 0
) -> tuple[Int4Weight, npt.NDArray[np.float64]]:
    """Return a random INT4 weight and its values [K, N], taken element by element."""
    rng = np.random.default_rng(seed)
    groups = num_groups(k, group_size)
    levels = rng.integers(0, 16, (k, n)) if has_zeros else rng.integers(-8, 8, (k, n))
    zeros = rng.integers(0, 16, (groups, n)) if has_zeros else np.zeros((groups, n), np.int64)
    scales = rng.uniform(-0.1, 0.1, (groups, n)).astype(np.float16)
    values = np.empty((k, n))
    for row in range(k):
        for column in range(n):
            block = row // group_size
            values[row, column] = (levels[row, column] - zeros[block, column]) * float(scales[block, column])
    weight = Int4Weight(
        packed=pack_nibbles(levels.astype(np.int8)),
        scales=scales,
        zeros=pack_nibbles(zeros.astype(np.uint8)) if has_zeros else None,
        group_size=group_size,
    )
    return weight, values


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (32, 2), (33, 5), (200, 7), (256, 16)])
def test_dequantize_is_the_written_formula(k: int, n: int, group_size: int, has_zeros: bool) -> None:
    """q * scale or (q - zero) * scale, exactly, over tails and odd widths."""
    weight, values = random_weight(k, n, group_size=group_size, has_zeros=has_zeros)
    result = dequantize(weight)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_linear_is_a_matrix_product_and_a_bias(has_zeros: bool) -> None:
    """x @ w + b in float64, whatever type x has."""
    weight, values = random_weight(70, 9, group_size=32, has_zeros=has_zeros)
    rng = np.random.default_rng(1)
    x, bias = rng.standard_normal((3, 70)).astype(np.float16), rng.standard_normal(9)
    expected = np.array([[math.fsum(row * values[:, j]) for j in range(9)] for row in x.astype(np.float64)])
    np.testing.assert_allclose(int4_linear(x, weight), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(int4_linear(x, weight, bias), expected + bias, rtol=1e-12, atol=1e-12)


def test_linear_refuses_what_does_not_fit() -> None:
    """The message names both shapes."""
    weight, _ = random_weight(64, 4, group_size=32, has_zeros=False)
    with pytest.raises(KernelError, match=r"inputs \(2, 63\), expected \[M, 64\]"):
        int4_linear(np.ones((2, 63)), weight)
    with pytest.raises(KernelError, match=r"bias \(5,\), expected \(4,\)"):
        int4_linear(np.ones((2, 64)), weight, np.ones(5))


def test_swiglu_takes_gate_first_and_survives_large_inputs() -> None:
    """silu(gate) * up; silu tends to 0 and to the identity without overflow."""
    gate, up = np.array([[0.0, 1.0, -1000.0, 1000.0]]), np.array([[3.0, 2.0, 5.0, 0.5]])
    expected = [[0.0, 2.0 / (1.0 + math.exp(-1.0)), 0.0, 500.0]]
    np.testing.assert_allclose(swiglu(np.concatenate([gate, up], axis=1)), expected, rtol=1e-15)


def test_swiglu_refuses_an_odd_width() -> None:
    """Half a gate is an error of the caller."""
    with pytest.raises(KernelError, match="gate and up side by side"):
        swiglu(np.ones((2, 5)))


def test_rms_norm_scales_rows_to_unit_mean_square() -> None:
    """With weight 1 and eps 0 the mean square of each row is 1; weight and eps then act as written."""
    x = np.random.default_rng(2).standard_normal((4, 30)) * 7.0
    np.testing.assert_allclose((rms_norm(x, np.ones(30), eps=0.0) ** 2).mean(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(rms_norm(np.zeros((1, 30)), np.ones(30), eps=1e-5), 0.0)
    np.testing.assert_allclose(rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), eps=3.5), [[0.75, 2.0]])


def test_rms_norm_refuses_a_weight_of_another_width() -> None:
    """Broadcasting must not hide a wrong weight."""
    with pytest.raises(KernelError, match=r"weight \(1,\)"):
        rms_norm(np.ones((2, 8)), np.ones(1), eps=1e-5)


@pytest.mark.parametrize("count", [2, 3, 1000, 49152])
def test_entropy_of_equal_logits_is_log2_of_their_number(count: int) -> None:
    """Entropy is in bits."""
    found = head_statistics(np.full((1, count), 12.5, np.float32))
    np.testing.assert_allclose(found.entropy_bits, math.log2(count), rtol=1e-12)
    assert found.margin[0] == 0.0


def test_argmax_takes_the_lowest_index_of_a_tie() -> None:
    """Every kernel must break ties alike, or greedy decoding differs between engines."""
    found = head_statistics(np.array([[1.0, 5.0, 5.0, 5.0], [2.0, 2.0, 1.0, 0.0]]))
    assert found.argmax.tolist() == [1, 0]
    assert found.margin.tolist() == [0.0, 0.0]


def test_ruled_out_tokens_count_for_nothing() -> None:
    """-inf removes a token: two equal ones that remain have 1 bit."""
    found = head_statistics(np.array([[-np.inf, 3.0, -np.inf, 3.0], [-np.inf, -np.inf, 0.0, -np.inf]]))
    np.testing.assert_allclose(found.entropy_bits, [1.0, 0.0])
    assert found.margin.tolist() == [0.0, np.inf]


def test_extreme_logits_neither_overflow_nor_give_nan() -> None:
    """A row as certain as float32 allows has entropy 0 and its full margin."""
    found = head_statistics(np.array([[3.0e38, -3.0e38, 0.0]], np.float32))
    assert found.entropy_bits[0] == 0.0
    assert found.margin[0] == pytest.approx(3.0e38, rel=1e-6)


@pytest.mark.parametrize("row", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_rows_without_a_distribution_are_refused(row: list[float]) -> None:
    """A broken pass is reported, not sampled from."""
    with pytest.raises(KernelError, match="expected finite logits"):
        head_statistics(np.array([row]))


def test_one_logit_is_no_choice() -> None:
    """A margin needs two."""
    with pytest.raises(KernelError, match="V of 2 or more"):
        head_statistics(np.ones((3, 1)))


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
        elements=st.floats(-80, 80, width=32),
    ),
    st.floats(-50, 50),
)
def test_statistics_do_not_depend_on_a_constant(logits: npt.NDArray[np.float32], shift: float) -> None:
    """Adding a constant changes no probability, so it changes nothing here; entropy stays within 0 and log2 V."""
    values = logits.astype(np.float64)
    found, shifted = head_statistics(values), head_statistics(values + shift)
    np.testing.assert_allclose(shifted.entropy_bits, found.entropy_bits, atol=1e-9)
    np.testing.assert_allclose(shifted.margin, found.margin, atol=1e-9)
    assert (found.entropy_bits >= 0.0).all()
    assert (found.entropy_bits <= math.log2(values.shape[1]) + 1e-9).all()
    assert (found.margin >= 0.0).all()
