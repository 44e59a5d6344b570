"""Which route three-level drafting takes: settle, try the other one, keep the better, look again ever more rarely."""

from __future__ import annotations

import pytest

from edgeprec.route_choice import (
    FIRST_RETRIAL_TOKENS,
    LONGEST_RETRIAL_TOKENS,
    LONGEST_TURN_ROUNDS,
    SETTLING_ROUNDS,
    TRIAL_ROUNDS,
    Rates,
    Route,
    RouteChoice,
)


def rates(int4: float | None, direct: float | None) -> Rates:
    """Return tokens per cost of both routes."""
    return {Route.INT4: int4, Route.DIRECT: direct}


def ran(choice: RouteChoice, rounds: int, known: Rates, *, emitted: int = 4, has_drafted: bool = True) -> RouteChoice:
    """Return the choice after so many rounds."""
    for _ in range(rounds):
        choice = choice.after_round(has_drafted=has_drafted, emitted=emitted, rates=lambda: known)
    return choice


def test_the_other_route_is_tried_once_the_first_has_settled() -> None:
    """The route asked for runs first; then comes a trial of a few rounds."""
    choice = ran(RouteChoice(), SETTLING_ROUNDS - 1, rates(1.0, None))
    assert choice.route is Route.INT4
    choice = ran(choice, 1, rates(1.0, None))
    assert (choice.route, choice.is_trial) == (Route.DIRECT, True)
    assert ran(choice, TRIAL_ROUNDS, rates(1.0, 0.5)).route is Route.INT4


@pytest.mark.parametrize(
    ("int4", "direct", "route"),
    [
        (1.0, 1.2, Route.DIRECT),
        (1.0, 1.04, Route.INT4),
        (1.0, 0.2, Route.INT4),
        (1.0, None, Route.INT4),
        (None, 2.0, Route.INT4),
    ],
)
def test_a_trial_decides(int4: float | None, direct: float | None, route: Route) -> None:
    """Only a gain of more than 5 % that is known moves the choice."""
    choice = ran(RouteChoice(), SETTLING_ROUNDS + TRIAL_ROUNDS, rates(int4, direct))
    assert (choice.chosen, choice.is_trial) == (route, False)


def test_without_a_trial_rates_are_still_compared() -> None:
    """A route that gets worse on this text is left for the one that was better than that."""
    choice = ran(RouteChoice(), SETTLING_ROUNDS + TRIAL_ROUNDS, rates(1.0, 0.9))
    assert ran(choice, SETTLING_ROUNDS, rates(0.8, 0.9)).route is Route.DIRECT


def test_trials_become_rarer_while_they_fail() -> None:
    """512 tokens, 1,024 and so on to 8,192: what losing trials cost fades."""
    choice, waits = RouteChoice(), []
    tokens = 0
    for _ in range(12_000):
        was_trial = choice.is_trial
        choice = ran(choice, 1, rates(1.0, 0.5))
        tokens += 4
        if was_trial and not choice.is_trial:
            waits.append(choice.retrial_tokens)
    assert waits[:7] == [512, 1024, 2048, 4096, 8192, 8192, 8192]
    assert (FIRST_RETRIAL_TOKENS, LONGEST_RETRIAL_TOKENS) == (512, 8192)


def test_a_trial_that_wins_resets_the_wait() -> None:
    """The route that was just left may be right again soon."""
    choice = RouteChoice(chosen=Route.INT4, is_trial=True, retrial_tokens=4096)
    choice = ran(choice, TRIAL_ROUNDS, rates(1.0, 2.0))
    assert (choice.chosen, choice.retrial_tokens) == (Route.DIRECT, FIRST_RETRIAL_TOKENS)


def test_a_route_that_drafts_nothing_ends_its_turn() -> None:
    """Rounds without a draft teach nothing, but they do not hold a trial up for ever."""
    choice = RouteChoice(is_trial=True)
    assert ran(choice, LONGEST_TURN_ROUNDS - 1, rates(1.0, None), has_drafted=False).is_trial
    assert not ran(choice, LONGEST_TURN_ROUNDS, rates(1.0, None), has_drafted=False).is_trial


def test_the_next_sequence_has_no_half_trial() -> None:
    """A trial cut short by the end of a reply starts over."""
    choice = RouteChoice(chosen=Route.DIRECT, is_trial=True, drafts=3, rounds=5, tokens_since_trial=7, retrial_tokens=9)
    carried = choice.carried()
    assert (carried.chosen, carried.is_trial, carried.drafts, carried.rounds) == (Route.DIRECT, False, 0, 0)
    assert (carried.tokens_since_trial, carried.retrial_tokens) == (7, 9)
