"""Costs learned from noisy timings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.costs import CostModel, DraftCost, VerifyCost


def _noisy(rng: np.random.Generator, cost: float, *, stalls: float = 0.0) -> float:
    return float(cost * np.exp(0.1 * rng.standard_normal()) * (6.0 if rng.random() < stalls else 1.0))


def test_draft_cost_converges_through_noise_and_stalls() -> None:
    """One draft in fifty stalls sixfold; what a draft and each of its tokens cost is learned within 10 %."""
    rng = np.random.default_rng(1)
    drafts = DraftCost()
    for _ in range(400):
        tokens = int(rng.integers(1, 4))
        drafts = drafts.updated(tokens, _noisy(rng, 0.7 + 0.5 * tokens, stalls=0.02))
    assert drafts.step == pytest.approx(0.5, rel=0.10)
    for tokens in (1, 3, 6, 12):
        assert drafts.cost(tokens) == pytest.approx(0.7 + 0.5 * tokens, rel=0.10)


def test_drafts_of_one_length_count_as_steps() -> None:
    """Nothing tells a draft's own cost from its tokens' then; two lengths do, after a few samples."""
    drafts = DraftCost().updated(1, 1.2).updated(1, 1.2)
    assert drafts.cost(5) == pytest.approx(6.0)
    for _ in range(8):
        drafts = drafts.updated(1, 1.2).updated(3, 2.2)
    cost = drafts.cost(5)
    assert cost is not None
    assert 3.2 <= cost < 3.5


def test_a_cold_start_does_not_count() -> None:
    """Of the first two samples the cheaper one stands."""
    assert DraftCost().updated(1, 50.0).updated(1, 5.0).cost(1) == pytest.approx(5.0)
    assert VerifyCost().updated(1, 50.0).updated(1, 5.0).cost(1) == pytest.approx(5.0)


def test_nothing_is_known_before_the_first_sample() -> None:
    """No sample, no cost; samples of 0 are no samples."""
    assert DraftCost().cost(1) is None
    assert DraftCost().step is None
    assert DraftCost().updated(1, 0.0).cost(1) is None
    assert VerifyCost().cost(1) is None
    assert VerifyCost().updated(1, 0.0).cost(1) is None
    assert CostModel().round_cost(0) is None
    assert CostModel().draft_step() is None
    assert CostModel().draft_cost(0) == 0.0
    assert CostModel().draft_cost(1) is None


def test_verify_cost_learns_every_count_of_rows() -> None:
    """The measured curve of a CPU, flat and then stepping up, is learned to 6 %."""
    true = {1: 16.7, 2: 17.6, 4: 18.4, 5: 18.8, 8: 22.2}
    rng = np.random.default_rng(2)
    verify = VerifyCost()
    for _ in range(400):
        rows = int(rng.choice(list(true)))
        verify = verify.updated(rows, _noisy(rng, true[rows], stalls=0.01))
    for rows, cost in true.items():
        assert verify.cost(rows) == pytest.approx(cost, rel=0.06)
    between = verify.cost(3)
    assert between is not None
    assert 17.0 < between < 19.5


def test_unmeasured_rows_follow_a_cautious_slope() -> None:
    """One count of rows known: each further row is assumed to cost 3 % of it."""
    verify = VerifyCost().updated(1, 10.0).updated(1, 10.0)
    assert verify.cost(5) == pytest.approx(11.2, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.01, 100.0)), min_size=1, max_size=40))
def test_more_rows_never_cost_less(samples: list[tuple[int, float]]) -> None:
    """Whatever was timed, the curve is positive and does not fall."""
    verify = VerifyCost()
    for rows, cost in samples:
        verify = verify.updated(rows, cost)
    curve = [verify.cost(rows) for rows in range(1, 20)]
    known = [cost for cost in curve if cost is not None]
    assert len(known) == len(curve)
    assert all(near <= far for near, far in pairwise(known))


def test_one_stalled_pass_does_not_bend_the_curve() -> None:
    """A first pass of eight rows that stalled sixfold raises its neighbours by less than 10 %."""
    verify = VerifyCost()
    for _ in range(20):
        verify = verify.updated(1, 10.0).updated(3, 10.6)
    before = verify.cost(5)
    after = verify.updated(8, 72.0).cost(5)
    assert before is not None
    assert after is not None
    assert after < 1.10 * before


def test_plain_cost_follows_a_drift_seen_on_longer_passes_only() -> None:
    """When the context makes five-row passes 50 % dearer, the plain step's estimate rises by at least 35 %."""
    rng = np.random.default_rng(3)
    verify = VerifyCost()
    for _ in range(30):
        verify = verify.updated(1, _noisy(rng, 10.0)).updated(5, _noisy(rng, 11.2))
    for tick in range(400):
        verify = verify.updated(5, _noisy(rng, 11.2 * (1.0 + 0.5 * min(tick / 300, 1.0))))
    plain = verify.cost(1)
    assert plain is not None
    assert 13.5 < plain < 16.0


def test_round_cost_adds_steps_and_pass() -> None:
    """Drafting three costs three steps and a pass of four rows."""
    costs = CostModel()
    for _ in range(3):
        costs = costs.updated(rung=0, drafted=3, draft_cost=6.0, rows=4, verify_cost=10.0)
        costs = costs.updated(rung=0, drafted=0, draft_cost=0.0, rows=1, verify_cost=9.0)
    assert costs.draft_step() == pytest.approx(2.0)
    assert costs.round_cost(3) == pytest.approx(16.0, rel=0.01)
    assert costs.round_cost(0) == pytest.approx(9.0, rel=0.01)
    assert costs.draft_samples() == 3


def test_rungs_have_their_own_draft_cost() -> None:
    """A gear that keeps layers in FP16 drafts dearer; one never timed takes the nearest lower one's."""
    costs = CostModel().updated(rung=0, drafted=2, draft_cost=4.0, rows=3, verify_cost=9.0)
    assert costs.draft_step(2) == pytest.approx(2.0)
    costs = costs.updated(rung=2, drafted=1, draft_cost=5.0, rows=2, verify_cost=9.0)
    assert costs.draft_step(0) == pytest.approx(2.0)
    assert costs.draft_step(1) == pytest.approx(2.0)
    assert costs.draft_step(2) == pytest.approx(5.0)


def test_an_unverified_round_teaches_only_the_draft_step() -> None:
    """Zero rows is no pass."""
    costs = CostModel().updated(rung=0, drafted=1, draft_cost=2.0, rows=0, verify_cost=0.0)
    assert costs.draft_step() == pytest.approx(2.0)
    assert costs.verify == VerifyCost()


def test_an_expected_step_only_makes_drafts_cheaper() -> None:
    """What longer drafts are expected to cost a token stands for a dearer measurement, never for a cheaper one."""
    measured = CostModel().updated(rung=0, drafted=2, draft_cost=0.8, rows=3, verify_cost=1.0)
    assert measured.with_step(None) == measured
    assert measured.with_step(0.1).draft_step() == pytest.approx(0.1)
    assert measured.with_step(0.9).draft_step() == pytest.approx(0.4)
    assert measured.with_step(0.1).draft_samples() == measured.draft_samples()
    assert measured.with_step(0.1).verify == measured.verify
    assert CostModel().with_step(0.1).draft_step() is None
