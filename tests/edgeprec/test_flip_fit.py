"""The smooth flip probability: it finds the drafter's, never rises with the margin, and its limit leaves epsilon."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.calibration import AgreementGrid
from edgeprec.flip_fit import FlipFit

_Array = npt.NDArray[np.float64]


def _flips(entropy: _Array, margin: _Array) -> _Array:
    """Return the simulated drafter's flip probability: a coin toss at margin 0, and 0.2 % of lapses."""
    flips: _Array = 0.002 + 0.998 / (1.0 + np.exp(2.4 * margin - 0.2 * np.log2(entropy)))
    return flips


def _tokens(seed: int, count: int) -> tuple[_Array, _Array, npt.NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    margin = rng.gamma(1.5, 1.6, count)
    entropy = np.clip(4.0 - margin + rng.standard_normal(count), 0.01, 9.0)
    return entropy, margin, rng.random(count) >= _flips(entropy, margin)


@pytest.mark.parametrize(("count", "tolerance"), [(1_700, 0.1), (40_000, 0.08)])
def test_fit_finds_the_drafter_within_a_cell(count: int, tolerance: float) -> None:
    """Between margins 0.5 and 1.5, one cell of the grid, flips fall from 0.27 to 0.03; the fit follows.

    Not exactly: within a cell it takes margins as evenly spread, which these are not.
    """
    fit = FlipFit.of(AgreementGrid.count(*_tokens(1, count)))
    margins = np.linspace(0.25, 3.0, 12)
    fitted = [fit.flip(2.0, float(margin)) for margin in margins]
    assert np.abs(fitted - _flips(np.full(12, 2.0), margins)).max() <= tolerance


@pytest.mark.parametrize("epsilon", [0.005, 0.01, 0.03])
def test_limit_leaves_epsilon_of_flips_on_other_tokens(epsilon: float) -> None:
    """Tokens below the limit, drawn anew, flip in at most epsilon of all, and not in much less.

    A little more than epsilon is left at 0.005, where lapses are most of it and the fit counts some of them as slips.
    """
    grid = AgreementGrid.count(*_tokens(2, 20_000))
    fit = FlipFit.of(grid)
    limit = fit.limit(grid, epsilon=epsilon)
    entropy, margin, agreed = _tokens(3, 50_000)
    final = np.array([fit.flip(float(h), float(m)) <= limit for h, m in zip(entropy, margin, strict=True)])
    assert 0.5 * epsilon <= float(np.mean(final & ~agreed)) <= 1.2 * epsilon


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0.0, 1.0)), min_size=32, max_size=32))
@settings(max_examples=40, deadline=None)
def test_any_counts_give_a_probability_that_falls_with_the_margin(cells: list[tuple[int, float]]) -> None:
    """Whatever was counted: finite parameters, probabilities, never rising with margin nor falling with entropy."""
    trials = tuple(count for count, _ in cells)
    fit = FlipFit.of(AgreementGrid(trials, tuple(int(count * share) for count, share in cells)))
    by_margin = [fit.flip(2.0, margin) for margin in (0.0, 0.3, 1.0, 2.0, 5.0, 50.0)]
    by_entropy = [fit.flip(bits, 1.0) for bits in (0.0, 0.5, 2.0, 6.0, 30.0)]
    assert all(0.0 < flip <= 1.0 for flip in (*by_margin, *by_entropy))
    assert all(near >= far for near, far in itertools.pairwise(by_margin))
    assert all(low <= high for low, high in itertools.pairwise(by_entropy))


def test_nothing_may_stand_where_every_token_flips() -> None:
    """A drafter that is always wrong has no limit above 0."""
    grid = AgreementGrid((100,) * 32, (0,) * 32)
    assert FlipFit.of(grid).limit(grid, epsilon=0.01) == 0.0


def test_all_may_stand_where_no_token_flips() -> None:
    """A drafter that was never wrong may emit even a token of no margin, which none of those counted had."""
    grid = AgreementGrid((100,) * 32, (100,) * 32)
    fit = FlipFit.of(grid)
    assert fit.flip(20.0, 0.0) <= fit.limit(grid, epsilon=0.01)
