"""Three levels or two: whether the draft model's tokens go through the INT4 target to FP16, or to FP16 directly.

Each route has an expected rate, tokens over measured cost (``Controller.expected_rate``). The route asked for runs
first; once it has settled the other one is tried for a few rounds, and the better one stays, for a gain of more than
5 %. Then both rates are compared now and then, and the route not in use is tried again after ever more tokens, because
its rate belongs to the text it was measured on. Whether speculation pays at all is the guard's question, not this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Rates", "Route", "RouteChoice"]

SETTLING_ROUNDS = 16
TRIAL_ROUNDS = 12
LONGEST_TURN_ROUNDS = 48  # a turn ends although too little was drafted in it
LEAST_GAIN = 1.05
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
    """The route in use, as a value. A turn is the rounds since the route or its trial began, or was last looked at."""

    chosen: Route = Route.INT4
    is_trial: bool = False
    drafts: int = 0  # rounds of this turn that drafted
    rounds: int = 0
    tokens_since_trial: int = 0
    retrial_tokens: int = 0  # the first trial waits for nothing but the settling

    @property
    def route(self) -> Route:
        """Return the route of the coming round."""
        return self.chosen.other if self.is_trial else self.chosen

    def after_round(self, *, has_drafted: bool, emitted: int, rates: Callable[[], Rates]) -> RouteChoice:
        """Return the choice after a round; ``rates`` is asked at the end of a turn only."""
        turn = replace(
            self,
            drafts=self.drafts + has_drafted,
            rounds=self.rounds + 1,
            tokens_since_trial=self.tokens_since_trial + emitted,
        )
        needed = TRIAL_ROUNDS if self.is_trial else SETTLING_ROUNDS
        if turn.drafts < needed and turn.rounds < LONGEST_TURN_ROUNDS:
            return turn
        turn = replace(turn, drafts=0, rounds=0)
        if turn.is_trial or turn.tokens_since_trial < turn.retrial_tokens:
            return turn._compared(rates())
        return replace(turn, is_trial=True)

    def carried(self) -> RouteChoice:
        """Return what the next sequence starts from; a trial that was cut short is due again."""
        return replace(self, is_trial=False, drafts=0, rounds=0)

    def _compared(self, rates: Rates) -> RouteChoice:
        mine, others = rates[self.chosen], rates[self.chosen.other]
        is_better = mine is not None and others is not None and others > LEAST_GAIN * mine
        chosen = self.chosen.other if is_better else self.chosen
        if not self.is_trial:
            return replace(self, chosen=chosen)
        longer = FIRST_RETRIAL_TOKENS if is_better else 2 * self.retrial_tokens
        return replace(
            self,
            chosen=chosen,
            is_trial=False,
            tokens_since_trial=0,
            retrial_tokens=min(max(longer, FIRST_RETRIAL_TOKENS), LONGEST_RETRIAL_TOKENS),
        )
