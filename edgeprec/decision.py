"""What passes between a controller and the rounds it steers: a decision, a verdict on each draft, a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeprec.gears import Band, Gear
from edgeprec.governor import PowerBias
from edgeprec.precision import Plan
from edgeprec.stop_rules import StopReason

__all__ = ["Decision", "DraftVerdict", "RoundPolicy", "Verification"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a round runs.

    ``draft_plan`` is the plan of a draft step, or of the token itself when ``is_verified`` is False; None when no model
    drafts. ``draft_cap`` 0 with ``is_verified`` is a plain FP16 step; ``reason`` then says why nothing is drafted.
    """

    gear: Gear
    draft_plan: Plan | None
    draft_cap: int
    is_verified: bool
    reason: StopReason
    smoothed_bits: float | None

    @property
    def verify_now(self) -> bool:
        """Whether FP16 decodes this token itself."""
        return self.is_verified and self.draft_cap == 0


@dataclass(frozen=True, slots=True)
class DraftVerdict:
    """What to do after a drafted token: stop (and why) or go on; ``is_final`` = emit it unverified (mode bounded)."""

    stop: StopReason | None
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """One FP16 pass over the drafted tokens of a round, and what the whole round cost.

    ``accepted`` counts drafted tokens before the first one FP16 disagreed with. ``entropy_bits`` are FP16's for every
    emitted token, in order; their number is the number of emitted tokens. ``agreed`` is for mode bounded, where final
    tokens stand whatever FP16 says: its verdict on each pending token. The costs of draft and verify together
    cover everything from ``begin_round`` to the end of the round. ``is_typical`` False = the round did something once,
    such as compiling or capturing a pass: its costs say nothing of the next one.
    """

    accepted: int
    entropy_bits: Sequence[float]
    rows: int
    draft_ns: int
    verify_ns: int
    draft_mj: float | None = None
    verify_mj: float | None = None
    agreed: Sequence[bool] | None = None
    is_typical: bool = True


class RoundPolicy(Protocol):
    """Decides the rounds of one sequence; see ``edgeprec.controller`` for the order of the calls."""

    @property
    def gear(self) -> Gear:
        """Return the gear entropy asks for."""
        ...

    @property
    def band(self) -> Band:
        """Return the thresholds in use."""
        ...

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return in words what did not run as asked."""
        ...

    def observe_prefill(self, entropy_bits: float) -> None:
        """Take FP16's entropy of the prompt's last row."""
        ...

    def begin_round(self, *, room_tokens: int, bias: PowerBias = ...) -> Decision:
        """Decide the next round; ``room_tokens`` may be drafted."""
        ...

    def observe_draft(self, entropy_bits: float | None, margin: float | None) -> DraftVerdict:
        """Take the entropy and margin of a drafted token and say whether to go on."""
        ...

    def observe_verify(self, outcome: Verification) -> None:
        """Take the pass that ended the round."""
        ...

    def observe_token(self, entropy_bits: float) -> None:
        """Take the entropy of a token nobody verifies."""
        ...
