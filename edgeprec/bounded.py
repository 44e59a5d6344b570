"""Mode ``bounded``: which drafted tokens may be final without FP16 having looked at them.

``FlipFit`` says how likely FP16 would overrule a token. Verifying the likeliest flips first leaves, for the same
number of verified tokens, the fewest flips. So there is one limit: tokens below it are final, others are verified. It
is the largest limit at which the flips left over all tokens like the calibration's stay below epsilon on average.

Two things guard against a text that is harder than the calibration's. The flips expected so far never exceed epsilon
times the tokens so far. And whatever FP16 looks at later is counted: where more tokens flip than was expected of them,
every token is thought to flip that much more often.

The calibration counts greedy choices; at a temperature above 0 only that count tells that tokens flip more often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["VERIFY_EVERY_TOKENS", "FlipBudget"]

VERIFY_EVERY_TOKENS = 16
_CALM_FLIPS = 3.0  # so many flips more than expected double the expectation


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBudget:
    """The flips expected among the tokens emitted so far, as a value. ``pending`` tokens await their verification."""

    epsilon: float
    limit: float
    expected_flips: float = 0.0
    tokens: int = 0
    pending: int = 0
    drafted_flips: float = 0.0  # expected among the tokens of this round
    judged_expected: float = 0.0  # the same of all that were verified
    judged_flips: int = 0

    @property
    def excess(self) -> float:
        """Return by what factor, 1 or more, flips are likelier than the calibration thinks."""
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
            drafted_flips=self.drafted_flips + flip,
        )

    def after_doubtful(self, flip: float) -> FlipBudget:
        """Return the budget after a token that FP16 must look at first."""
        return replace(self, drafted_flips=self.drafted_flips + flip)

    def after_verify(self, tokens: int, *, flips: int) -> FlipBudget:
        """Return the budget after a pass that emitted ``tokens`` of its own and found ``flips`` drafted ones wrong."""
        return replace(
            self,
            tokens=self.tokens + tokens,
            pending=0,
            drafted_flips=0.0,
            judged_expected=self.judged_expected + self.drafted_flips,
            judged_flips=self.judged_flips + flips,
        )
