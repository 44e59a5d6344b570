"""When drafting stops before its cap: the entropy rule of this project, and two published ones to compare it with.

entropy   smoothed entropy above theta_high, or the draft's survival below what still pays
svip      sqrt(0.15 H) > 0.3 with H in nats, that is H above 0.87 bits (SVIP: self-verification length policy)
adaedl    1 - sqrt(0.2 H) < lambda with H in nats; lambda follows a target acceptance (AdaEDL)
fixed     never
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import log, sqrt

__all__ = ["AdaedlThreshold", "StopReason", "adaedl_stops", "svip_stops"]

_NATS_PER_BIT = log(2.0)


class StopReason(StrEnum):
    """Why a draft ended, or why there was none."""

    CAP = "cap"  # as many as the cap allows
    BUFFER = "buffer"  # no room for more rows, positions or tokens
    ENTROPY = "entropy"  # smoothed entropy above theta_high
    SURVIVAL = "survival"  # one more token would not pay
    RULE = "rule"  # svip or adaedl
    FLIP = "flip"  # bounded: the token may be wrong, FP16 must look at it
    HIGH_GEAR = "high_gear"  # nothing drafted: the text is too uncertain
    GUARD = "guard"  # nothing drafted: speculation does not pay
    SAMPLE = "sample"  # nothing drafted: a plain step was timed
    NONE = "none"  # nothing drafted: the mode or the drafter has none


def svip_stops(entropy_bits: float) -> bool:
    """Return whether SVIP ends the draft after a token of this entropy."""
    return sqrt(0.15 * entropy_bits * _NATS_PER_BIT) > 0.3


def adaedl_stops(entropy_bits: float, threshold: float) -> bool:
    """Return whether AdaEDL's lower bound of the acceptance is below its threshold."""
    return 1.0 - sqrt(0.2 * entropy_bits * _NATS_PER_BIT) < threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaedlThreshold:
    """AdaEDL's lambda, as a value: raised while drafts are rejected too often, lowered while they are not."""

    threshold: float = 0.4
    acceptance: float = 0.9
    target: float = 0.9
    step: float = 0.01
    acceptance_memory: float = 0.5
    threshold_memory: float = 0.9

    def updated(self, *, drafted: int, accepted: int) -> AdaedlThreshold:
        """Return the threshold after a verified draft."""
        if not drafted:
            return self
        memory = self.acceptance_memory
        acceptance = memory * self.acceptance + (1.0 - memory) * accepted / drafted
        moved = self.threshold + (self.step if acceptance < self.target else -self.step)
        keep = self.threshold_memory
        threshold = keep * self.threshold + (1.0 - keep) * moved
        return replace(self, threshold=min(max(threshold, 0.0), 1.0), acceptance=acceptance)
