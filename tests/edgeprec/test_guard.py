"""The guard: what failing speculation may cost, and when it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.costs import CostModel
from edgeprec.guard import LARGEST_STEPS, LONGEST_PROBE_TOKENS, PROBE_TOKENS, START_STEPS, STEPS_PER_TOKEN, Guard


def _costs(draft_step: float = 0.33, row: float = 0.03) -> CostModel:
    costs = CostModel()
    for _ in range(3):
        for rows in range(1, 9):
            drafted = int(rows > 1)
            costs = costs.updated(
                rung=0, drafted=drafted, draft_cost=drafted * draft_step, rows=rows, verify_cost=1.0 + row * (rows - 1)
            )
    return costs


def _round(guard: Guard, costs: CostModel, *, cap: int, accepted: int, is_probe: bool = False) -> Guard:
    cost, plain = costs.round_cost(cap), costs.round_cost(0)
    assert cost is not None
    return guard.after_draft(
        emitted=accepted + 1, cost=cost, expected=cost, plain=plain, paid=accepted > 0, is_probe=is_probe
    )


@pytest.mark.parametrize("wanted", [1, 3, 8])
@pytest.mark.parametrize("tokens", [128, 1_000])
@pytest.mark.parametrize("draft_step", [0.05, 0.33, 1.5])
def test_speculation_that_always_fails_costs_at_most_three_percent(wanted: int, tokens: int, draft_step: float) -> None:
    """Against a drafter that is never right, total cost stays within 103 % of plain decoding from 128 tokens on."""
    costs, guard = _costs(draft_step), Guard(plain_samples=2)
    total = 0.0
    for _ in range(tokens):
        cap = guard.allowed_cap(wanted, costs)
        cost = costs.round_cost(cap)
        assert cost is not None
        total += cost
        guard = _round(guard, costs, cap=cap, accepted=0) if cap else guard.after_plain()
    plain = costs.round_cost(0)
    assert plain is not None
    assert total / (tokens * plain) <= 1.03


def test_speculation_that_pays_is_never_held_back() -> None:
    """Two accepted of three each round: the cap is what is wanted, from the second round on."""
    costs, guard = _costs(), Guard(plain_samples=2)
    for round_number in range(50):
        cap = guard.allowed_cap(3, costs)
        assert cap == (3 if round_number else 2)
        guard = _round(guard, costs, cap=cap, accepted=2)
    assert guard.budget_steps == LARGEST_STEPS


@given(st.lists(st.integers(0, 4), max_size=300))
def test_loss_never_exceeds_the_budget(outcomes: list[int]) -> None:
    """Whatever is accepted, the steps lost so far stay within start plus growth: no streak of luck is gambled away."""
    costs, guard = _costs(), Guard(plain_samples=2)
    plain, lost, worst, tokens = costs.round_cost(0), 0.0, 0.0, 0
    assert plain is not None
    for outcome in outcomes:
        cap = guard.allowed_cap(4, costs)
        accepted, cost = min(outcome, cap), costs.round_cost(cap)
        assert cost is not None
        lost += cost / plain - (accepted + 1)
        tokens += accepted + 1
        worst = max(worst, lost - STEPS_PER_TOKEN * tokens)
        guard = _round(guard, costs, cap=cap, accepted=accepted) if cap else guard.after_plain()
        assert -1e-9 <= guard.budget_steps <= LARGEST_STEPS
    assert worst <= START_STEPS + 1e-9


def test_unknown_costs_allow_a_short_first_draft() -> None:
    """Before anything was timed, two tokens may be tried and eight may not."""
    assert Guard().allowed_cap(2, CostModel()) == 2
    assert Guard().allowed_cap(8, CostModel()) == 2


def test_plain_steps_are_timed_at_the_start() -> None:
    """The first two rounds are plain, so that there is something to compare with."""
    guard = Guard()
    for _ in range(2):
        assert guard.is_plain_sample_due(5.0)
        guard = guard.after_plain()
    assert not guard.is_plain_sample_due(5.0)


@pytest.mark.parametrize(("gain", "interval"), [(0.9, 16), (1.1, 16), (1.3, 64), (2.0, 256)])
def test_plain_steps_are_timed_more_often_near_break_even(gain: float, interval: int) -> None:
    """A plain step costs what speculation gains, so a clear gain is interrupted rarely."""
    costs, guard = _costs(), Guard(plain_samples=2)
    tokens = 0
    while not guard.is_plain_sample_due(gain):
        guard = _round(guard, costs, cap=1, accepted=1)
        tokens += 2
    assert tokens == interval


def test_probes_back_off_while_they_fail() -> None:
    """Each failed trial doubles the wait, up to a limit; an accepted token resets it."""
    costs, guard, waits = _costs(), Guard(plain_samples=2), []
    for _ in range(6):
        wait = 0
        while not guard.is_probe_due:
            guard = guard.after_plain()
            wait += 1
        waits.append(wait)
        guard = _round(guard, costs, cap=1, accepted=0, is_probe=True)
    assert waits == [PROBE_TOKENS, 64, 128, LONGEST_PROBE_TOKENS, LONGEST_PROBE_TOKENS, LONGEST_PROBE_TOKENS]
    assert _round(guard, costs, cap=1, accepted=0).probe_tokens == LONGEST_PROBE_TOKENS
    assert _round(guard, costs, cap=1, accepted=1).probe_tokens == PROBE_TOKENS


def test_a_stall_is_not_speculations_fault() -> None:
    """A round that took thirty times what it should counts twice, not thirty times."""
    guard = Guard(plain_samples=2).after_draft(emitted=2, cost=30.0, expected=1.0, plain=1.0, paid=True, is_probe=False)
    assert guard.budget_steps == pytest.approx(START_STEPS + 2 * STEPS_PER_TOKEN)


def test_a_round_before_plain_was_timed_changes_no_budget() -> None:
    """Without a plain step's cost nothing can be called lost."""
    guard = Guard().after_draft(emitted=1, cost=9.0, expected=None, plain=None, paid=False, is_probe=False)
    assert guard.budget_steps == pytest.approx(START_STEPS + STEPS_PER_TOKEN)
