"""What is learned of acceptance: convergence, censoring, smoothing."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.acceptance import UNSEEN_CELL, AcceptanceTable, DraftProfile, expected_tokens, table_cell
from edgeprec.calibration import AgreementGrid

_RATES = st.lists(st.floats(0, 1), max_size=8)


def _grid(rates: npt.NDArray[np.float64], tokens: int) -> AgreementGrid:
    return AgreementGrid((tokens,) * 32, tuple(int(rate * tokens) for rate in rates))


def _true_rates(seed: int) -> npt.NDArray[np.float64]:
    return np.sort(np.random.default_rng(seed).uniform(0.05, 0.98, 32))[::-1]


def _drafts(
    table: AcceptanceTable, rates: npt.NDArray[np.float64], *, rounds: int, length: int, seed: int
) -> AcceptanceTable:
    """Let a simulated drafter of known acceptance draft; FP16 stops at its first wrong token."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        cells = rng.integers(0, 32, length)
        hits = rng.random(length) < rates[cells]
        accepted = length if hits.all() else int(hits.argmin())
        table = table.updated([int(cell) for cell in cells], accepted=accepted)
    return table


@given(_RATES)
def test_expected_tokens_equals_enumeration(rates: list[float]) -> None:
    """Summing over every outcome of a round gives the same mean."""
    total = 0.0
    for outcome in itertools.product((True, False), repeat=len(rates)):
        chance = float(np.prod([rate if hit else 1.0 - rate for rate, hit in zip(rates, outcome, strict=True)]))
        accepted = len(outcome) if all(outcome) else outcome.index(False)
        total += chance * (1 + accepted)
    assert expected_tokens(rates) == pytest.approx(total, abs=1e-9)


def test_table_converges_on_a_drafter_of_known_acceptance() -> None:
    """From a wrong prior, the rates reach the drafter's within the noise of the trials."""
    rates = _true_rates(1)
    table = AcceptanceTable.from_grid(_grid(1.0 - rates, 100), forgetting=1.0)
    table = _drafts(table, rates, rounds=20_000, length=3, seed=2)
    error = np.abs(np.array(table.rates[:32]) - rates)
    assert error.max() < 0.06, f"max {error.max()}, mean {error.mean()}"


@pytest.mark.parametrize("length", [2, 4, 8])
def test_censoring_is_unbiased(length: int) -> None:
    """However long the drafts, counting up to the first rejection estimates the true rates."""
    rates = _true_rates(3)
    table = _drafts(AcceptanceTable.from_grid(None, forgetting=1.0), rates, rounds=12_000, length=length, seed=4)
    trials, accepted = np.array(table.trials[:32]), np.array(table.accepted[:32])
    deviation = (accepted - trials * rates) / np.sqrt(trials * rates * (1.0 - rates))
    assert np.abs(deviation).max() < 4.5, f"max {np.abs(deviation).max()} standard deviations"
    assert abs(deviation.mean()) < 0.6, f"mean {deviation.mean()} standard deviations"


def test_tokens_after_the_first_rejection_are_no_trials() -> None:
    """Of five drafted tokens with two accepted, three are counted."""
    table = AcceptanceTable.from_grid(None).updated([0, 1, 2, 3, 4], accepted=2)
    assert table.trials[:6] == (1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    assert table.accepted[:6] == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def test_full_acceptance_counts_every_token() -> None:
    """Nothing was rejected, so nothing is censored."""
    table = AcceptanceTable.from_grid(None).updated([7, 7, 7], accepted=3)
    assert (table.trials[7], table.accepted[7]) == (3.0, 3.0)


def test_prior_comes_from_the_calibration() -> None:
    """Before any round the rates are the calibration's; a few trials move them a little."""
    table = AcceptanceTable.from_grid(_grid(np.full(32, 0.9), 200))
    assert table.rates[:32] == pytest.approx([0.9] * 32, abs=0.01)
    assert 0.8 < table.updated([5], accepted=0).rate(5) < table.rate(5)


def test_a_strong_prior_moves_less() -> None:
    """Mode bounded lets the calibration weigh its true number of tokens."""
    grid = _grid(np.full(32, 0.99), 900)
    weak = AcceptanceTable.from_grid(grid).updated([5], accepted=0)
    strong = AcceptanceTable.from_grid(grid, prior_tokens=1000.0).updated([5], accepted=0)
    assert weak.rate(5) < 0.96 < 0.985 < strong.rate(5)


def test_without_calibration_the_guess_falls_with_entropy() -> None:
    """The default prior trusts certain tokens more."""
    rates = AcceptanceTable.from_grid(None).rates[:32:4]
    assert all(low > high for low, high in itertools.pairwise(rates[:6]))
    assert all(0.0 < rate < 1.0 for rate in rates)
    assert AcceptanceTable.from_grid(AgreementGrid()).rates == AcceptanceTable.from_grid(None).rates


def test_forgetting_follows_a_change_of_text() -> None:
    """After a text on which nothing is accepted, the table says so within some dozens of rounds."""
    table = AcceptanceTable.from_grid(None, forgetting=0.95)
    for _ in range(200):
        table = table.updated([3, 3], accepted=2)
    assert table.rate(3) > 0.9
    for _ in range(60):
        table = table.updated([3, 3], accepted=0)
    assert table.rate(3) < 0.2


def test_frequencies_sum_to_one_and_follow_what_is_met() -> None:
    """The mean rate weighs cells by how often they occur."""
    grid = AgreementGrid((90,) + (0,) * 30 + (10,), (90,) + (0,) * 30 + (0,))
    table = AcceptanceTable.from_grid(grid)
    assert sum(table.frequencies) == pytest.approx(1.0)
    assert 0.8 < table.mean_rate < 0.95
    for _ in range(50):
        table = table.updated([31], accepted=0)
    assert table.mean_rate < 0.6


def test_tokens_without_logits_have_a_cell_of_their_own() -> None:
    """An n-gram lookup's tokens do not mix with a model's."""
    assert table_cell(None, None) == UNSEEN_CELL
    assert table_cell(0.0, 9.0) == 3
    table = AcceptanceTable.from_grid(None).updated([UNSEEN_CELL], accepted=1)
    assert table.rate(UNSEEN_CELL) > 0.6
    assert table.trials[:32] == (0.0,) * 32


def test_uncensored_counts_take_every_verdict() -> None:
    """Where every token was judged on the text that stands, all are trials."""
    table = AcceptanceTable.from_grid(None).counted([1, 2, 1], [True, False, False])
    assert (table.trials[1], table.accepted[1], table.trials[2], table.accepted[2]) == (2.0, 1.0, 1.0, 0.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8)).map(
            lambda t: (min(t[0], t[2]), min(t[1], t[0], t[2]), t[2])
        ),
        max_size=30,
    )
)
def test_profile_rates_are_probabilities(rounds: list[tuple[int, int, int]]) -> None:
    """Whatever the rounds, rates lie in 0..1 and reach never rises along the draft."""
    profile = DraftProfile.empty(8)
    for drafted, accepted, cap in rounds:
        profile = profile.updated(drafted=drafted, accepted=accepted, cap=cap)
    reach = profile.reach()
    assert all(0.0 <= rate <= 1.0 for rate in (*profile.acceptance(0.7), *reach))
    assert all(near >= far for near, far in itertools.pairwise(reach))


def test_profile_learns_acceptance_by_place() -> None:
    """A drafter that is good at first and bad later shows as such, without bias from rejections before."""
    true = [0.9, 0.8, 0.4, 0.4]
    rng = np.random.default_rng(5)
    profile = DraftProfile.empty(4, forgetting=1.0)
    for _ in range(4_000):
        hits = rng.random(4) < true
        accepted = 4 if hits.all() else int(hits.argmin())
        profile = profile.updated(drafted=4, accepted=accepted, cap=4)
    assert profile.acceptance(0.5) == pytest.approx(true, abs=0.04)
    assert profile.reach() == (1.0,) * 4


def test_profile_learns_how_far_a_rule_lets_drafts_go() -> None:
    """Reach is what the rule allows; a cap that ends a draft says nothing about what lies beyond."""
    rng = np.random.default_rng(6)
    profile = DraftProfile.empty(4, forgetting=1.0)
    for round_number in range(4_000):
        cap = 1 + round_number % 4
        drafted = next((i for i in range(1, cap) if rng.random() < 0.3), cap)
        profile = profile.updated(drafted=drafted, accepted=0, cap=cap)
    assert profile.reach() == pytest.approx([1.0, 0.7, 0.49, 0.343], abs=0.04)


def test_a_faded_profile_returns_to_the_default() -> None:
    """Without drafts an old verdict loses weight, until the table's rate stands again."""
    profile = DraftProfile.empty(2)
    for _ in range(40):
        profile = profile.updated(drafted=1, accepted=0, cap=1)
    assert profile.acceptance(0.8)[0] < 0.15
    assert profile.faded(0.1).acceptance(0.8)[0] > 0.4
    assert profile.faded(0.0) == DraftProfile.empty(2)


def test_untried_places_take_the_rate_before_them() -> None:
    """A cap of one says something about the second place too."""
    profile = DraftProfile.empty(3)
    for _ in range(30):
        profile = profile.updated(drafted=1, accepted=0, cap=1)
    first, second, third = profile.acceptance(0.9)
    assert first == second == third < 0.25


def test_rates_by_entropy_follow_what_was_accepted() -> None:
    """A bin not met has the rate of all, so it is tried; rates never rise; before anything was met they are 1."""
    table = AcceptanceTable.from_grid(None, forgetting=1.0)
    assert table.rates_by_entropy == (1.0,) * 8
    low, high = table_cell(0.05, 5.0), table_cell(6.0, 0.1)
    table = table.counted([low] * 90 + [high] * 90, [True] * 90 + [False] * 90)
    rates = table.rates_by_entropy
    assert rates[0] == pytest.approx((90 + 4 * 0.5) / 94)
    assert rates[-1] == pytest.approx(4 * 0.5 / 94)
    assert rates[1:-1] == (0.5,) * 6


def test_reach_beyond_the_cap_goes_on_as_before_it() -> None:
    """Places that no draft was allowed to try are reached from the one before as often as the last tried one was."""
    profile = DraftProfile.empty(4)
    for drafted in (1, 1, 2, 2) * 50:
        profile = profile.updated(drafted=drafted, accepted=drafted, cap=2)
    reach = profile.reach()
    assert reach[:2] == pytest.approx([1.0, 0.5], abs=0.02)
    assert reach[2:] == pytest.approx([0.25, 0.125], abs=0.03)
