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


def flip_limit(table: AcceptanceTable, *, epsilon: float) -> float:
    """Return the flip probability below which tokens are final; 0 when none may be."""
    cells = sorted((1.0 - rate, share) for rate, share in zip(table.rates, table.frequencies, strict=True))
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

    def is_final(self, flip: float) -> bool:
        """Return whether a drafted token of this flip probability may be emitted unverified."""
        return flip <= self.limit and self.expected_flips + flip <= self.epsilon * (self.tokens + 1)

    @property
    def must_verify(self) -> bool:
        """Whether so many tokens are pending that one pass, its own token included, must repair the cache."""
        return self.pending >= VERIFY_EVERY_TOKENS - 1

    def after_final(self, flip: float) -> FlipBudget:
        """Return the budget after a token was emitted unverified."""
        return replace(
            self,
            expected_flips=self.expected_flips + flip,
            tokens=self.tokens + 1,
            pending=self.pending + 1,
        )

    def after_verify(self, tokens: int, *, limit: float) -> FlipBudget:
        """Return the budget after a pass that emitted ``tokens`` verified ones; all that was pending is repaired."""
        return replace(self, tokens=self.tokens + tokens, pending=0, limit=limit)
