"""Three levels or two: whether the draft model's tokens go through the INT4 target to FP16, or to FP16 directly.

Each route has an expected rate, tokens over measured cost (``Controller.expected_rate``). The INT4 target's runs first;
then the direct one is tried, and every few rounds the better one is taken. Three levels must promise 10 % more to be
chosen: their rate rests on two acceptances, and the direct route's shows on the text at once. The route not in use is
tried again after ever more tokens, because what INT4's tokens are worth shows on its own route only. Whether
speculation pays at all is the guard's question, not this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Rates", "Route", "RouteChoice"]

COMPARED_EVERY_ROUNDS = 8
TRIAL_ROUNDS = 12
LEAST_GAIN = 1.1  # of three levels over two
FIRST_RETRIAL_TOKENS = 512
LONGEST_RETRIAL_TOKENS = 8192


class Route(StrEnum):
    """Who reads the draft model's tokens first."""

    INT4 = "int4"  # the target in INT4; FP16 then reads what it made of them
    DIRECT = "direct"  # FP16

    @property
    def other(self) -> Route:
        """Return the other route."""
        return Route.DIRECT if self is Route.INT4 else Route.INT4


Rates = Mapping[Route, float | None]
"""Tokens per cost by route, None where not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChoice:
    """The route in use, as a value. ``rounds`` are those since it was last looked at, or since a trial began."""

    chosen: Route = Route.INT4
    is_trial: bool = False  # of the other one
    rounds: int = 0
    tokens_since_trial: int = 0
    retrial_tokens: int = 0  # the first trial waits for nothing but the rounds before it

    @property
    def route(self) -> Route:
        """Return the route of the coming round."""
        return self.chosen.other if self.is_trial else self.chosen

    def after_round(self, *, emitted: int, rates: Callable[[], Rates]) -> RouteChoice:
        """Return the choice after a round; ``rates`` is asked when they are compared only."""
        turn = replace(self, rounds=self.rounds + 1, tokens_since_trial=self.tokens_since_trial + emitted)
        if turn.rounds < (TRIAL_ROUNDS if self.is_trial else COMPARED_EVERY_ROUNDS):
            return turn
        turn = replace(turn, rounds=0)
        if not self.is_trial and turn.tokens_since_trial >= turn.retrial_tokens:
            return replace(turn, is_trial=True)
        return turn._compared(rates())

    def carried(self) -> RouteChoice:
        """Return what the next sequence starts from; a trial that was cut short is due again."""
        return replace(self, is_trial=False, rounds=0)

    def _compared(self, rates: Rates) -> RouteChoice:
        best = self._best(rates)
        if best is not self.chosen:
            wait = FIRST_RETRIAL_TOKENS
        elif self.is_trial:
            wait = min(max(2 * self.retrial_tokens, FIRST_RETRIAL_TOKENS), LONGEST_RETRIAL_TOKENS)
        else:
            return self
        return replace(self, chosen=best, is_trial=False, tokens_since_trial=0, retrial_tokens=wait)

    def _best(self, rates: Rates) -> Route:
        int4, direct = rates[Route.INT4], rates[Route.DIRECT]
        if int4 is None or direct is None:
            return self.chosen
        was_chosen_by_rates = self.chosen is Route.INT4 and self.retrial_tokens > 0
        return Route.INT4 if int4 > (1.0 if was_chosen_by_rates else LEAST_GAIN) * direct else Route.DIRECT
