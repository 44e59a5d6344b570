"""Mode bounded: flips stay below epsilon on average, on text like the calibration's and on harder text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.bounded import VERIFY_EVERY_TOKENS, FlipBudget
from edgeprec.calibration import AgreementGrid
from edgeprec.flip_fit import FlipFit

_Array = npt.NDArray[np.float64]


def _text(seed: int, tokens: int, *, harder: float = 1.0) -> tuple[_Array, _Array, npt.NDArray[np.bool_]]:
    """Draw entropy, margin and whether FP16 agrees; a token's flip probability halves every 0.4 of margin."""
    rng = np.random.default_rng(seed)
    margin = rng.gamma(1.5, 2.0, tokens)
    entropy = np.clip(5.0 - margin + rng.standard_normal(tokens), 0.01, 9.0)
    flips = np.clip(harder * 0.5 * 0.5 ** (margin / 0.4), 0.0, 0.95)
    return entropy, margin, rng.random(tokens) >= flips


@given(st.lists(st.floats(0.0, 1.0), max_size=200), st.floats(0.001, 0.2), st.floats(0.0, 0.5))
def test_expected_flips_never_exceed_the_mean(flips: list[float], epsilon: float, limit: float) -> None:
    """Whatever the tokens, at every moment the flips expected are at most epsilon times the tokens emitted."""
    budget = FlipBudget(epsilon=epsilon, limit=limit)
    for flip in flips:
        if budget.is_final(flip):
            assert flip <= limit
            budget = budget.after_final(flip)
        else:
            budget = budget.after_doubtful(flip).after_verify(1, flips=0)
        assert budget.expected_flips <= epsilon * budget.tokens + 1e-9


def test_more_flips_than_expected_raise_the_expectation() -> None:
    """Three flips where none was expected double it; fewer flips than expected lower nothing."""
    budget = FlipBudget(epsilon=0.1, limit=0.1).after_final(0.0)
    assert budget.after_verify(1, flips=3).excess == 2.0
    assert budget.after_verify(1, flips=0).excess == 1.0
    assert not budget.after_verify(1, flips=3).is_final(0.06)


def test_doubtful_tokens_that_flip_as_often_as_expected_change_nothing() -> None:
    """What FP16 looks at first is counted against its own expectation: 30 flips of 100 at 0.3 are no news."""
    budget = FlipBudget(epsilon=0.01, limit=0.05)
    for token in range(100):
        budget = budget.after_doubtful(0.3).after_verify(1, flips=int(token % 10 < 3))
    assert budget.excess == pytest.approx(1.0)
    for _ in range(30):
        budget = budget.after_doubtful(0.3).after_verify(1, flips=1)
    assert budget.excess > 1.4


def test_verification_is_due_after_fifteen_pending_tokens() -> None:
    """With its own token the pass then covers sixteen."""
    budget = FlipBudget(epsilon=0.1, limit=0.1)
    for _ in range(VERIFY_EVERY_TOKENS - 1):
        assert not budget.must_verify
        budget = budget.after_final(0.0)
    assert budget.must_verify
    assert not budget.after_verify(1, flips=0).must_verify


def _share_and_flips(
    grid: AgreementGrid, text: tuple[_Array, _Array, npt.NDArray[np.bool_]], epsilon: float
) -> tuple[float, float]:
    """Run the policy over a text; return the shares of verified tokens and of flips among all."""
    fit = FlipFit.of(grid)
    budget = FlipBudget(epsilon=epsilon, limit=fit.limit(grid, epsilon=epsilon))
    pending_wrong = verified = wrong = 0
    for entropy, margin, agrees in zip(*text, strict=True):
        flip = fit.flip(float(entropy), float(margin))
        if budget.is_final(flip):
            budget = budget.after_final(flip)
            pending_wrong += not agrees
            wrong += not agrees
            if budget.must_verify:
                budget, pending_wrong = budget.after_verify(0, flips=pending_wrong), 0
            continue
        verified += 1
        budget = budget.after_doubtful(flip).after_verify(1, flips=pending_wrong + (not agrees))
        pending_wrong = 0
    return verified / len(text[0]), wrong / len(text[0])


@pytest.mark.parametrize("epsilon", [0.005, 0.01, 0.03])
@pytest.mark.parametrize("calibrated_on", [1_600, 8_000])
def test_bounded_keeps_its_promise_on_held_out_text(epsilon: float, calibrated_on: int) -> None:
    """On text like the calibration's, flips stay below epsilon and most tokens are not verified."""
    grid = AgreementGrid.count(*_text(1, calibrated_on))
    results = [_share_and_flips(grid, _text(seed, 3_000), epsilon) for seed in range(10, 16)]
    verified, wrong = np.mean(results, axis=0)
    assert wrong <= epsilon
    assert verified <= 0.6


def test_bounded_keeps_its_promise_over_short_replies() -> None:
    """Epsilon is a mean over replies of 32 tokens, each with a budget of its own, and verifies no more than 60 %."""
    grid = AgreementGrid.count(*_text(1, 1_600))
    results = [_share_and_flips(grid, _text(seed, 32), 0.01) for seed in range(100, 300)]
    verified, wrong = np.mean(results, axis=0)
    assert wrong <= 0.01
    assert verified <= 0.6


def test_bounded_notices_a_harder_text() -> None:
    """Where the drafter flips three times as often as calibrated, verification notices and flips stay near epsilon."""
    grid = AgreementGrid.count(*_text(1, 8_000))
    results = [_share_and_flips(grid, _text(seed, 3_000, harder=3.0), 0.01) for seed in range(20, 25)]
    assert np.mean(results, axis=0)[1] <= 0.013
