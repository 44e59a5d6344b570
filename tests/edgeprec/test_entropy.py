"""Entropy in bits, margins, and the window that rewinds."""

from __future__ import annotations

from math import inf, log2

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.entropy import SmoothedEntropy, row_statistics
from edgeprec.errors import ConfigError, EngineError


def _reference_entropy(row: npt.NDArray[np.float32]) -> float:
    wide = row.astype(np.float64)
    p = np.exp(wide - wide.max())
    p /= p.sum()
    return float(-(p[p > 0] * np.log2(p[p > 0])).sum())


def _rows(seed: int, rows: int, vocab: int, scale: float) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0, 30.0, 1e4])
@pytest.mark.parametrize("vocab", [2, 3, 257, 49_152])
def test_entropy_equals_a_float64_reference(scale: float, vocab: int) -> None:
    """Entropy holds to 1e-3 bits from the flattest to the sharpest distribution."""
    logits = _rows(7, 3, vocab, scale)
    measured = row_statistics(logits).entropy_bits
    expected = np.array([_reference_entropy(row) for row in logits])
    error = np.abs(measured - expected)
    assert error.max() < 1e-3, f"max {error.max()}, mean {error.mean()}"


def test_uniform_row_has_log2_of_the_vocabulary() -> None:
    """Entropy is in bits: equal logits over 2**n tokens give n."""
    statistics = row_statistics(np.full((1, 1024), 5.0, np.float32))
    assert statistics.entropy_bits[0] == pytest.approx(10.0, abs=1e-4)
    assert statistics.margin[0] == 0.0
    assert statistics.argmax[0] == 0


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=40))
def test_statistics_of_any_finite_row_are_sane(values: list[float]) -> None:
    """No finite row gives NaN, negative entropy, more than log2 V bits or a negative margin."""
    row = np.array([values], np.float32)
    argmax, entropy, margin = row_statistics(row)
    ordered = np.sort(row[0])
    assert argmax[0] == int(row[0].argmax())
    assert 0.0 <= entropy[0] <= log2(len(values)) + 1e-3
    assert margin[0] == ordered[-1] - ordered[-2]


@pytest.mark.parametrize(
    ("row", "argmax", "entropy", "margin"),
    [
        ([-inf, 1.0, -inf, 1.0], 1, 1.0, 0.0),
        ([-inf, 3.0, -inf], 1, 0.0, inf),
        ([0.0, inf, 2.0], 1, 0.0, inf),
        ([inf, 1.0, inf, inf, inf], 0, 2.0, 0.0),
        ([-3e38, 3e38], 1, 0.0, inf),
        ([-1e30, -1e30], 0, 1.0, 0.0),
    ],
)
def test_infinite_and_huge_logits(row: list[float], argmax: int, entropy: float, margin: float) -> None:
    """Masked tokens weigh nothing, infinite ones share all the mass."""
    statistics = row_statistics(np.array([row], np.float32))
    assert statistics.argmax[0] == argmax
    assert statistics.entropy_bits[0] == pytest.approx(entropy, abs=1e-5)
    assert statistics.margin[0] == margin


@pytest.mark.parametrize("row", [[1.0, np.nan], [np.nan, 1.0], [-inf, -inf]])
def test_broken_rows_are_refused(row: list[float]) -> None:
    """A row with NaN or without mass is an error that names the row, not a token."""
    logits = np.array([[0.0, 1.0], row], np.float32)
    with pytest.raises(EngineError, match="row 1"):
        row_statistics(logits)


@pytest.mark.parametrize("shape", [(4,), (2, 1), (1, 2, 3)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    """Only [rows, vocabulary] is taken."""
    with pytest.raises(EngineError, match="shape"):
        row_statistics(np.zeros(shape, np.float32))


def test_input_is_left_alone_and_rows_are_independent() -> None:
    """The logits are not written to, and a row's figures do not depend on its neighbours."""
    logits = _rows(3, 5, 300, 4.0)
    copy = logits.copy()
    together = row_statistics(logits)
    assert np.array_equal(logits, copy)
    for index in range(5):
        alone = row_statistics(logits[index : index + 1])
        assert alone.entropy_bits[0] == together.entropy_bits[index]
        assert alone.margin[0] == together.margin[index]


def test_no_rows_give_no_statistics() -> None:
    """An empty pass is not an error."""
    assert row_statistics(np.zeros((0, 8), np.float32)).argmax.shape == (0,)


def test_window_is_the_mean_of_the_last_tokens() -> None:
    """Smoothing takes the last W entropies, fewer at the start, none before the first."""
    empty = SmoothedEntropy(3)
    assert empty.bits is None
    assert empty.pushed(1.0).bits == 1.0
    assert empty.pushed(1.0, 2.0, 3.0, 7.0).bits == pytest.approx(4.0)


@given(st.lists(st.floats(0, 20), max_size=12), st.lists(st.floats(0, 20), max_size=8), st.integers(1, 5))
def test_rewinding_forgets_the_draft(emitted: list[float], drafted: list[float], window: int) -> None:
    """After a rejection the window is what it would be had nothing been drafted."""
    before = SmoothedEntropy(window).pushed(*emitted)
    before.pushed(*drafted)
    assert before == SmoothedEntropy(window).pushed(*emitted)
    one_by_one = SmoothedEntropy(window)
    for value in emitted:
        one_by_one = one_by_one.pushed(value)
    assert one_by_one == before


def test_window_of_zero_is_refused() -> None:
    """A window needs a token."""
    with pytest.raises(ConfigError, match="window"):
        SmoothedEntropy(0)
