"""The draft cap: equal to brute force, steady, and right about what pays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.costs import CostModel
from edgeprec.drafting import DECIDE_EVERY_ROUNDS, LEAST_GAIN, OPEN_LOSS, CapChoice, CapProblem, survival_floor

_SHARES = st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6)


def _costs(draft_step: float, plain: float, row: float, *, rung: int = 0) -> CostModel:
    costs = CostModel()
    for _ in range(3):
        for rows in range(1, 9):
            drafted = int(rows > 1)
            costs = costs.updated(
                rung=rung,
                drafted=drafted,
                draft_cost=drafted * draft_step,
                rows=rows,
                verify_cost=plain + row * (rows - 1),
            )
    return costs


def _problem(
    acceptance: float | list[float],
    *,
    costs: CostModel,
    reach: list[float] | None = None,
    joules: CostModel | None = None,
    exponent: float = 0.0,
) -> CapProblem:
    rates = acceptance if isinstance(acceptance, list) else [acceptance] * 8
    return CapProblem(
        acceptance=tuple(rates),
        reach=tuple(reach or [1.0] * len(rates)),
        seconds=costs,
        joules=joules,
        energy_exponent=exponent,
    )


def _by_enumeration(problem: CapProblem, cap: int) -> tuple[float, float]:
    """Mean tokens and cost of a round: every place the rule may stop, every pattern of acceptance."""
    stops = [*problem.reach[:cap], 0.0]
    tokens = cost = 0.0
    for drafted in range(cap + 1):
        chance = (1.0 if drafted == 0 else stops[drafted - 1]) - (stops[drafted] if drafted < cap else 0.0)
        spent = problem.seconds.round_cost(drafted)
        assert spent is not None
        cost += chance * spent
        for hits in itertools.product((True, False), repeat=drafted):
            likely = float(np.prod([a if hit else 1 - a for a, hit in zip(problem.acceptance, hits, strict=False)]))
            tokens += chance * likely * (1 + (drafted if all(hits) else hits.index(False)))
    return tokens, cost


@given(_SHARES, _SHARES, st.floats(0.01, 2.0), st.floats(0.0, 0.5))
def test_cap_equals_brute_force(rates: list[float], stops: list[float], draft_step: float, row: float) -> None:
    """The chosen cap is the argmax over all caps of tokens per second, summed over every outcome of a round."""
    reach = sorted((1.0 - 0.9 * stop for stop in stops), reverse=True)
    problem = _problem(rates, costs=_costs(draft_step, 1.0, row), reach=reach)
    scores = [tokens / cost for tokens, cost in (_by_enumeration(problem, cap) for cap in range(7))]
    assert problem.scores(6) == pytest.approx(scores, rel=1e-9)
    chosen = CapChoice(cap=0).decided(problem, largest=6).cap
    assert scores[chosen] * LEAST_GAIN >= max(scores) * (1.0 - 1e-9)
    if max(scores) > LEAST_GAIN * scores[0] * (1.0 + 1e-9):
        assert scores[chosen] == pytest.approx(max(scores))


@pytest.mark.parametrize(
    ("rate", "draft_step", "cap"),
    [(0.0, 0.3, 0), (0.2, 0.33, 0), (0.7, 0.33, 2), (0.9, 0.33, 4), (0.99, 0.33, 8), (0.7, 0.05, 4), (0.9, 1.2, 0)],
)
def test_cap_follows_acceptance_and_cost(rate: float, draft_step: float, cap: int) -> None:
    """Good or cheap drafts are long, bad or dear ones are not made."""
    problem = _problem(rate, costs=_costs(draft_step, 1.0, 0.03))
    assert CapChoice(cap=0).decided(problem, largest=8).cap == cap


def test_cap_changes_only_for_three_percent() -> None:
    """Near a tie the cap in use stays; for a clear gain it goes."""
    problem = _problem(0.7, costs=_costs(0.33, 1.0, 0.03))
    scores = problem.scores(8)
    assert scores is not None
    for cap, score in enumerate(scores):
        chosen = CapChoice(cap=cap).decided(problem, largest=8).cap
        assert chosen == (cap if max(scores) <= LEAST_GAIN * score else scores.index(max(scores)))


def test_cap_is_looked_at_every_eight_rounds() -> None:
    """A decided choice is due again after eight rounds, and not before."""
    choice = CapChoice(cap=2)
    assert choice.is_due
    choice = choice.decided(_problem(0.9, costs=_costs(0.33, 1.0, 0.03)), largest=8)
    ages = []
    while not choice.is_due:
        choice = choice.aged()
        ages.append(choice.rounds)
    assert ages == list(range(2, DECIDE_EVERY_ROUNDS + 1))


def test_nothing_is_decided_before_three_timed_drafts() -> None:
    """One badly timed draft must not settle the cap."""
    costs = CostModel()
    for drafts in range(3):
        assert not CapChoice(cap=2).decided(_problem(0.9, costs=costs), largest=8).is_decided, drafts
        costs = costs.updated(rung=0, drafted=1, draft_cost=0.3, rows=2, verify_cost=1.0)
    assert CapChoice(cap=2).decided(_problem(0.9, costs=costs), largest=8).is_decided


def test_a_cap_above_the_largest_is_given_up() -> None:
    """When fewer tokens are allowed than the cap in use, the best allowed one is taken."""
    problem = _problem(0.99, costs=_costs(0.1, 1.0, 0.01))
    assert CapChoice(cap=8).decided(problem, largest=3).cap == 3


def test_energy_objective_picks_by_joules() -> None:
    """Where drafting is fast but hungry, speed drafts and energy does not."""
    seconds, joules = _costs(0.2, 1.0, 0.02), _costs(1.5, 1.0, 0.02)
    speed = _problem(0.8, costs=seconds, joules=joules)
    energy = _problem(0.8, costs=seconds, joules=joules, exponent=1.0)
    assert CapChoice(cap=0).decided(speed, largest=8).cap > 2
    assert CapChoice(cap=5).decided(energy, largest=8).cap == 0


def test_higher_exponents_choose_lower_power() -> None:
    """The harder a power budget presses, the less power the chosen cap draws."""
    seconds, joules = _costs(0.3, 1.0, 0.02), _costs(0.9, 1.0, 0.02)
    watts = []
    for exponent in (0.0, 1.0, 2.0, 4.0):
        problem = _problem(0.9, costs=seconds, joules=joules, exponent=exponent)
        cap = CapChoice(cap=0).decided(problem, largest=8).cap
        spent, took = joules.round_cost(cap), seconds.round_cost(cap)
        assert spent is not None
        assert took is not None
        watts.append(spent / took)
    assert watts == sorted(watts, reverse=True)
    assert watts[-1] < watts[0]


def test_energy_without_joules_is_speed() -> None:
    """Nothing measured, nothing invented: the score stays tokens per second."""
    problem = _problem(0.8, costs=_costs(0.2, 1.0, 0.02), exponent=1.0)
    assert problem.scores(8) == _problem(0.8, costs=_costs(0.2, 1.0, 0.02)).scores(8)


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.floats(0.01, 1.0), st.floats(0.5, 3.0))
def test_survival_floor_is_where_one_more_token_pays(
    survival: float, rate: float, draft_step: float, tokens_per_cost: float
) -> None:
    """Above the floor one more token's ratio beats the round's, below it does not."""
    costs = _costs(draft_step, 1.0, 0.05)
    floor = survival_floor(costs, cap=4, rate=rate, tokens_per_cost=tokens_per_cost)
    shorter, longer = costs.round_cost(2), costs.round_cost(3)
    assert shorter is not None
    assert longer is not None
    gain = survival * rate / (longer - shorter)
    if abs(survival - floor) > 0.02 * floor:
        assert (survival > floor) == (gain > tokens_per_cost)


def test_survival_floor_is_zero_while_costs_are_unknown() -> None:
    """Without timings no draft is cut short."""
    assert survival_floor(CostModel(), cap=4, rate=0.5, tokens_per_cost=1.0) == 0.0
    assert survival_floor(_costs(0.3, 1.0, 0.0), cap=0, rate=0.5, tokens_per_cost=1.0) == 0.0


def test_an_open_cap_leaves_the_end_of_a_draft_to_the_rule() -> None:
    """Where a stop rule looks at every token, the cap is the longest that promises nearly as much as the best one."""
    problem = _problem(0.8, costs=_costs(0.33, 1.0, 0.03))
    scores = problem.scores(8)
    assert scores is not None
    closed = CapChoice(cap=2).decided(problem, largest=8).cap
    opened = CapChoice(cap=2).decided(problem, largest=8, is_open=True).cap
    assert opened > closed
    assert OPEN_LOSS * scores[opened] >= max(scores)
    assert opened == 8 or OPEN_LOSS * scores[opened + 1] < max(scores)


def test_an_open_cap_stays_0_where_drafting_does_not_pay() -> None:
    """Leaving the end to the rule is no reason to begin."""
    problem = _problem(0.9, costs=_costs(1.2, 1.0, 0.03))
    assert CapChoice(cap=0).decided(problem, largest=8, is_open=True).cap == 0
    assert CapChoice(cap=3).decided(problem, largest=8, is_open=True).cap == 0
