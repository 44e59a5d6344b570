"""Mode ``bounded``: which drafted tokens may be final without FP16 having looked at them.

A token's flip probability is 1 minus its cell's acceptance. Verifying the likeliest flips first leaves, for the same
number of verified tokens, the fewest flips. So there is one limit: tokens below it are final, others are verified. It
is the largest limit at which the flips left over all tokens stay below epsilon on average, given how often each cell
occurs. A running mean guards against a text that is harder than the calibration's: once the flips expected so far
exceed epsilon times the tokens so far, tokens are verified until they do not.

The calibration counts greedy choices; at a temperature above 0 the rates follow only as verified rounds correct them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeprec.acceptance import AcceptanceTable

__all__ = ["VERIFY_EVERY_TOKENS", "FlipBudget", "flip_limit"]

VERIFY_EVERY_TOKENS = 16
_CALM_FLIPS = 3.0  # so many flips more than expected double the expectation


def flip_limit(table: AcceptanceTable, *, epsilon: float) -> float:
    """Return the flip probability below which tokens are final; 0 when none may be."""
    shares = zip(table.rates, table.frequencies, strict=True)
    cells = sorted((1.0 - rate, share) for rate, share in shares if share > 0.0)
    flips = limit = 0.0
    for flip, share in cells:
        flips += flip * share
        if flips > epsilon:
            break
        limit = flip
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBudget:
    """The flips expected among the tokens emitted so far, as a value. ``pending`` tokens await their verification."""

    epsilon: float
    limit: float
    expected_flips: float = 0.0
    tokens: int = 0
    pending: int = 0
    pending_flips: float = 0.0
    judged_expected: float = 0.0  # among final tokens that were verified later
    judged_flips: int = 0

    @property
    def excess(self) -> float:
        """Return by what factor, 1 or more, flips are likelier than the table thinks."""
        return max((self.judged_flips + _CALM_FLIPS) / (self.judged_expected + _CALM_FLIPS), 1.0)

    def is_final(self, flip: float) -> bool:
        """Return whether a drafted token of this flip probability may be emitted unverified."""
        likely = flip * self.excess
        return likely <= self.limit and self.expected_flips + likely <= self.epsilon * (self.tokens + 1)

    @property
    def must_verify(self) -> bool:
        """Whether so many tokens are pending that one pass, its own token included, must repair the cache."""
        return self.pending >= VERIFY_EVERY_TOKENS - 1

    def after_final(self, flip: float) -> FlipBudget:
        """Return the budget after a token was emitted unverified."""
        return replace(
            self,
            expected_flips=self.expected_flips + flip * self.excess,
            tokens=self.tokens + 1,
            pending=self.pending + 1,
            pending_flips=self.pending_flips + flip,
        )

    def after_verify(self, tokens: int, *, limit: float, flips: int) -> FlipBudget:
        """Return the budget after a pass that emitted ``tokens`` of its own and found ``flips`` final ones wrong."""
        return replace(
            self,
            limit=limit,
            tokens=self.tokens + tokens,
            pending=0,
            pending_flips=0.0,
            judged_expected=self.judged_expected + self.pending_flips,
            judged_flips=self.judged_flips + flips,
        )
