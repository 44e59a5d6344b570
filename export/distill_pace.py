"""How far a training run is, by steps or by time, and what follows from it: the learning rate, when to measure.

Pure: seconds come from the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MEASUREMENTS", "Pace", "learning_rate_share"]

MEASUREMENTS = 20
_WARM_UP = 0.03
_FLOOR = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The end of a run: after ``steps``, or, where that is None, after ``seconds``."""

    steps: int | None
    seconds: float

    def progress(self, *, step: int, elapsed_s: float) -> float:
        """Return 0 at the beginning, 1 at the end, after ``step`` steps and ``elapsed_s`` seconds."""
        done = elapsed_s / self.seconds if self.steps is None else step / self.steps
        return min(1.0, done)

    def is_due(self, *, measured: int, progress: float) -> bool:
        """Return whether to measure now, ``measured`` measurements having been made: one at 0, one at 1, evenly."""
        return progress >= min(1.0, measured / MEASUREMENTS)


def learning_rate_share(progress: float) -> float:
    """Return the share of the full learning rate: a linear rise over the first 3 %, then a cosine down to 2 %."""
    if progress < _WARM_UP:
        return _FLOOR + (1.0 - _FLOOR) * progress / _WARM_UP
    fallen = (progress - _WARM_UP) / (1.0 - _WARM_UP)
    return _FLOOR + (1.0 - _FLOOR) * 0.5 * (1.0 + math.cos(math.pi * fallen))
