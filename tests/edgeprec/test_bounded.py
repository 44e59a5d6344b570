"""Mode bounded: flips stay below epsilon on average, on text like the calibration's and on harder text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.acceptance import AcceptanceTable
from edgeprec.bounded import VERIFY_EVERY_TOKENS, FlipBudget, flip_limit
from edgeprec.calibration import AgreementGrid

_Grid = tuple[int, ...]


def _table(grid: AgreementGrid) -> AcceptanceTable:
    return AcceptanceTable.from_grid(grid, prior_tokens=1000.0, forgetting=0.999)


def _grid_of(cells: npt.NDArray[np.int64], agreed: npt.NDArray[np.bool_]) -> AgreementGrid:
    trials = np.bincount(cells, minlength=32)
    hits = np.bincount(cells[agreed], minlength=32)
    return AgreementGrid(tuple(map(int, trials)), tuple(map(int, hits)))


def _text(
    seed: int, tokens: int, *, flips: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Draw cells (certain ones more often) and whether FP16 agrees."""
    rng = np.random.default_rng(seed)
    weights = np.exp(-np.arange(32) / 6.0)
    cells = rng.choice(32, tokens, p=weights / weights.sum())
    return cells, rng.random(tokens) >= flips[cells]


_FLIPS = np.clip(0.0005 * np.exp(np.arange(32) / 3.5), 0.0, 0.9)


@pytest.mark.parametrize("epsilon", [0.002, 0.01, 0.05])
def test_limit_leaves_epsilon_of_flips(epsilon: float) -> None:
    """Cells below the limit together flip at most epsilon of all tokens, and one cell more would exceed it."""
    cells, agreed = _text(1, 20_000, flips=_FLIPS)
    table = _table(_grid_of(cells, agreed))
    limit = flip_limit(table, epsilon=epsilon)
    shares = zip(table.rates, table.frequencies, strict=True)
    flips = sorted((1.0 - rate, share) for rate, share in shares if share)
    below = sum(flip * share for flip, share in flips if flip <= limit)
    above = [flip * share for flip, share in flips if flip > limit]
    assert below <= epsilon < below + (above[0] if above else 1.0)


def test_limit_is_zero_when_nothing_is_safe() -> None:
    """A drafter that is always wrong gets no token through."""
    limit = flip_limit(_table(AgreementGrid((100,) * 32, (0,) * 32)), epsilon=0.01)
    assert limit == 0.0
    budget = FlipBudget(epsilon=0.01, limit=limit)
    assert not budget.is_final(0.9)


@given(st.lists(st.floats(0.0, 1.0), max_size=200), st.floats(0.001, 0.2), st.floats(0.0, 0.5))
def test_expected_flips_never_exceed_the_mean(flips: list[float], epsilon: float, limit: float) -> None:
    """Whatever the tokens, at every moment the flips expected are at most epsilon times the tokens emitted."""
    budget = FlipBudget(epsilon=epsilon, limit=limit)
    for flip in flips:
        if budget.is_final(flip):
            assert flip <= limit
            budget = budget.after_final(flip)
        else:
            budget = budget.after_verify(1, limit=limit, flips=0)
        assert budget.expected_flips <= epsilon * budget.tokens + 1e-9


def test_more_flips_than_expected_raise_the_expectation() -> None:
    """Three flips where none was expected double it; fewer flips than expected lower nothing."""
    budget = FlipBudget(epsilon=0.1, limit=0.1).after_final(0.0)
    assert budget.after_verify(1, limit=0.1, flips=3).excess == 2.0
    assert budget.after_verify(1, limit=0.1, flips=0).excess == 1.0
    assert not budget.after_verify(1, limit=0.1, flips=3).is_final(0.06)


def test_verification_is_due_after_fifteen_pending_tokens() -> None:
    """With its own token the pass then covers sixteen."""
    budget = FlipBudget(epsilon=0.1, limit=0.1)
    for _ in range(VERIFY_EVERY_TOKENS - 1):
        assert not budget.must_verify
        budget = budget.after_final(0.0)
    assert budget.must_verify
    assert not budget.after_verify(1, limit=0.1, flips=0).must_verify


def _share_and_flips(
    table: AcceptanceTable, text: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]], epsilon: float
) -> tuple[float, float]:
    """Run the policy over a text; return the shares of verified tokens and of flips among all."""
    budget = FlipBudget(epsilon=epsilon, limit=flip_limit(table, epsilon=epsilon))
    pending: list[tuple[int, bool]] = []
    verified = wrong = 0
    for cell, agrees in zip(*text, strict=True):
        flip = 1.0 - table.rate(int(cell))
        pending.append((int(cell), bool(agrees)))
        if budget.is_final(flip):
            budget = budget.after_final(flip)
            wrong += not agrees
            if not budget.must_verify:
                continue
        else:
            verified += 1
        table = table.counted([c for c, _ in pending], [hit for _, hit in pending])
        flips = sum(not hit for _, hit in pending[: budget.pending])
        limit = flip_limit(table, epsilon=epsilon)
        budget = budget.after_verify(len(pending) - budget.pending, limit=limit, flips=flips)
        pending = []
    return verified / len(text[0]), wrong / len(text[0])


@pytest.mark.parametrize("epsilon", [0.005, 0.01, 0.03])
def test_bounded_keeps_its_promise_on_held_out_text(epsilon: float) -> None:
    """On text like the calibration's, flips stay below epsilon and most tokens are not verified."""
    table = _table(_grid_of(*_text(1, 8_000, flips=_FLIPS)))
    results = [_share_and_flips(table, _text(seed, 3_000, flips=_FLIPS), epsilon) for seed in range(10, 15)]
    verified, wrong = np.mean(results, axis=0)
    assert wrong <= epsilon
    assert verified <= 0.6


def test_bounded_notices_a_harder_text() -> None:
    """Where the drafter flips four times as often as calibrated, verification notices and flips stay near epsilon."""
    table = _table(_grid_of(*_text(1, 8_000, flips=_FLIPS)))
    harder = np.clip(4.0 * _FLIPS, 0.0, 0.95)
    results = [_share_and_flips(table, _text(seed, 3_000, flips=harder), 0.01) for seed in range(20, 25)]
    assert np.mean(results, axis=0)[1] <= 0.016
