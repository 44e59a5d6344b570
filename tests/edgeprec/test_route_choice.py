"""Which route three-level drafting takes: the one that promises more, the other one tried ever more rarely."""

from __future__ import annotations

import pytest

from edgeprec.route_choice import (
    COMPARED_EVERY_ROUNDS,
    FIRST_RETRIAL_TOKENS,
    LONGEST_RETRIAL_TOKENS,
    TRIAL_ROUNDS,
    Rates,
    Route,
    RouteChoice,
)


def rates(int4: float | None, direct: float | None) -> Rates:
    """Return tokens per cost of both routes."""
    return {Route.INT4: int4, Route.DIRECT: direct}


def ran(choice: RouteChoice, rounds: int, known: Rates, *, emitted: int = 4) -> RouteChoice:
    """Return the choice after so many rounds."""
    for _ in range(rounds):
        choice = choice.after_round(emitted=emitted, rates=lambda: known)
    return choice


def settled(known: Rates) -> RouteChoice:
    """Return the choice after the first trial."""
    return ran(RouteChoice(), COMPARED_EVERY_ROUNDS + TRIAL_ROUNDS, known)


def test_the_direct_route_is_tried_after_a_few_rounds() -> None:
    """The INT4 target's runs first, whatever it promises; then comes a trial of the other one."""
    choice = ran(RouteChoice(), COMPARED_EVERY_ROUNDS - 1, rates(2.0, 1.0))
    assert (choice.route, choice.is_trial) == (Route.INT4, False)
    choice = ran(choice, 1, rates(2.0, 1.0))
    assert (choice.route, choice.is_trial) == (Route.DIRECT, True)
    assert ran(choice, TRIAL_ROUNDS, rates(2.0, 1.0)).route is Route.INT4


@pytest.mark.parametrize(
    ("int4", "direct", "route"),
    [
        (1.0, 1.2, Route.DIRECT),
        (1.05, 1.0, Route.DIRECT),
        (1.15, 1.0, Route.INT4),
        (1.0, None, Route.INT4),
        (None, 2.0, Route.INT4),
    ],
)
def test_a_trial_decides(int4: float | None, direct: float | None, route: Route) -> None:
    """Three levels must promise 10 % more than two; where a rate is not known nothing moves."""
    choice = settled(rates(int4, direct))
    assert (choice.chosen, choice.is_trial) == (route, False)


@pytest.mark.parametrize(
    ("int4", "direct", "route"), [(1.05, 1.0, Route.INT4), (0.95, 1.0, Route.DIRECT), (1.5, 1.0, Route.INT4)]
)
def test_three_levels_stay_while_they_promise_more(int4: float, direct: float, route: Route) -> None:
    """Once chosen they are left only for a route that is better, or the choice would go to and fro."""
    assert ran(settled(rates(1.5, 1.0)), COMPARED_EVERY_ROUNDS, rates(int4, direct)).route is route


@pytest.mark.parametrize(("int4", "route"), [(1.05, Route.DIRECT), (1.15, Route.INT4)])
def test_two_levels_are_left_for_a_clear_gain(int4: float, route: Route) -> None:
    """Rates are compared without a trial too."""
    assert ran(settled(rates(0.5, 1.0)), COMPARED_EVERY_ROUNDS, rates(int4, 1.0)).route is route


@pytest.mark.parametrize("known", [rates(2.0, 1.0), rates(0.5, 1.0)])
def test_trials_become_rarer_while_they_fail(known: Rates) -> None:
    """512 tokens, 1,024 and so on to 8,192: what losing trials cost fades, whichever route is chosen."""
    choice, waits = settled(known), []
    for _ in range(12_000):
        was_trial = choice.is_trial
        choice = ran(choice, 1, known)
        if was_trial and not choice.is_trial:
            waits.append(choice.retrial_tokens)
    assert waits[:5] == [1024, 2048, 4096, 8192, 8192]
    assert (FIRST_RETRIAL_TOKENS, LONGEST_RETRIAL_TOKENS) == (512, 8192)


def test_the_wait_begins_anew_with_every_change() -> None:
    """The route that was just left may be right again soon."""
    choice = RouteChoice(chosen=Route.DIRECT, is_trial=True, retrial_tokens=4096)
    choice = ran(choice, TRIAL_ROUNDS, rates(2.0, 1.0))
    assert (choice.chosen, choice.retrial_tokens) == (Route.INT4, FIRST_RETRIAL_TOKENS)


def test_the_next_sequence_has_no_half_trial() -> None:
    """A trial cut short by the end of a reply starts over."""
    choice = RouteChoice(chosen=Route.DIRECT, is_trial=True, rounds=5, tokens_since_trial=7, retrial_tokens=9)
    carried = choice.carried()
    assert (carried.chosen, carried.is_trial, carried.rounds) == (Route.DIRECT, False, 0)
    assert (carried.tokens_since_trial, carried.retrial_tokens) == (7, 9)
