"""What a draft step and a verifying pass cost here, learned from what they cost before; seconds or joules alike.

A verifying pass of r rows costs ``level * shape(r)``, and so does a draft of r tokens. The level follows every sample,
whatever its count, so a cost that grows with the context or falls with the clock moves all of them together; the shape
is learned slowly. That is how the cost of a plain step, which is a pass of one row, stays known while only longer
passes run. A draft has a cost before its first token, so its cost by token in short drafts says too much of a longer
one. Level and shape are averages of logarithms with outliers clipped, and of the first two samples the cheaper one
counts: neither a stall nor a cold start passes for a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, log
from typing import ClassVar, Self

__all__ = ["CostModel", "CurveCost", "DraftCost", "VerifyCost"]

_LEVEL_RATE = 1 / 16
_SHAPE_RATE = 1 / 128
_CLIP = 0.5  # of the logarithm: a sample counts as at most 1.65 times what was expected
_MOST = 16
_LINE_STRENGTH = 4.0  # samples' worth of the line in a count of rows, and of the assumed slope in the line
_FULL_SAMPLES = 32.0
_FIRST_DOUBT = 0.75  # of the first sample's weight


@dataclass(frozen=True, slots=True)
class CurveCost:
    """A cost by a count. ``shape`` holds (count, samples, log of cost over level).

    ``curve[n - 1]`` is the cost of a count of n over the level: a line through all that was measured, and where n
    itself was measured often, that. More never costs less.
    """

    share: ClassVar[float]  # of the mean cost, what one more costs until it was measured

    samples: int = 0
    log_level: float = 0.0
    shape: tuple[tuple[int, int, float], ...] = ()
    curve: tuple[float, ...] = ()

    def cost(self, count: int) -> float | None:
        """Return the expected cost, None before the first sample; above 16 it is that of 16."""
        if not self.curve:
            return None
        return exp(self.log_level) * self.curve[min(count, _MOST) - 1]

    def has_measured(self, count: int) -> bool:
        """Whether exactly so many were seen."""
        return any(known == count for known, _, _ in self.shape)

    def updated(self, count: int, cost: float) -> Self:
        """Return the model with one more sample."""
        if cost <= 0.0:
            return self
        value = log(cost) - self.log_level if self.samples else 0.0
        level = self.log_level if self.samples else log(cost)
        known = {other: (samples, offset) for other, samples, offset in self.shape}
        samples, offset = known.get(count, (0, self._first_offset(count, value)))
        if samples < 2:
            offset = min(offset, value)
        else:
            residual = _clipped(value - offset)
            offset += max(1.0 / (samples + 1), _SHAPE_RATE) * residual
            level += _LEVEL_RATE * residual
        known[count] = (samples + 1, offset)
        shape = tuple((other, *entry) for other, entry in sorted(known.items()))
        return replace(
            self, samples=self.samples + 1, log_level=level, shape=shape, curve=_curve(shape, share=self.share)
        )

    def _first_offset(self, count: int, value: float) -> float:
        """Return what a first sample of a count is taken for: no outlier from the line through the others."""
        if not self.curve:
            return value
        expected = log(self.curve[min(count, _MOST) - 1])
        return expected + _clipped(value - expected)


@dataclass(frozen=True, slots=True)
class VerifyCost(CurveCost):
    """The cost of an FP16 pass by its rows, 1 to 16: nearly all of it is reading the weights once."""

    share: ClassVar[float] = 0.03


@dataclass(frozen=True, slots=True)
class DraftCost(CurveCost):
    """The cost of a draft by its tokens, 1 to 16: what every draft costs, and a step for each token.

    Until drafts of different lengths were seen, all of it counts as steps.
    """

    share: ClassVar[float] = 1.0

    @property
    def step(self) -> float | None:
        """Return what one more token costs on average, None before the first draft."""
        first, last = self.cost(1), self.cost(_MOST)
        return None if first is None or last is None else (last - first) / (_MOST - 1)

    def at_most(self, step: float) -> DraftCost:
        """Return the model with no draft dearer than ``step`` a token."""
        limit = step * exp(-self.log_level)
        return replace(self, curve=tuple(min(cost, limit * count) for count, cost in enumerate(self.curve, 1)))


@dataclass(frozen=True, slots=True)
class CostModel:
    """Drafts by gear rung and tokens, and verifying passes by rows, in one unit."""

    draft: tuple[tuple[int, DraftCost], ...] = ()
    verify: VerifyCost = field(default_factory=VerifyCost)

    def draft_cost(self, drafted: int, rung: int = 0) -> float | None:
        """Return the cost of drafting so many tokens on a rung; one not yet seen costs what the next lower does."""
        if not drafted:
            return 0.0
        known = self._drafts(rung)
        return None if known is None else known.cost(drafted)

    def draft_step(self, rung: int = 0) -> float | None:
        """Return what one more token adds to a draft."""
        known = self._drafts(rung)
        return None if known is None else known.step

    def draft_samples(self, rung: int = 0) -> int:
        """Return how many draft rounds the cost of a step on this rung rests on."""
        return max((drafts.samples for other, drafts in self.draft if other <= rung), default=0)

    def round_cost(self, drafted: int, *, rung: int = 0) -> float | None:
        """Return the cost of drafting and verifying so many tokens; 0 is a plain step."""
        verify, draft = self.verify.cost(drafted + 1), self.draft_cost(drafted, rung)
        return None if verify is None or draft is None else draft + verify

    def with_step(self, cost: float | None) -> CostModel:
        """Return the model with every drafted token at ``cost`` at most, as far as drafts were measured at all."""
        if cost is None:
            return self
        return CostModel(tuple((rung, drafts.at_most(cost)) for rung, drafts in self.draft), self.verify)

    def updated(self, *, rung: int, drafted: int, draft_cost: float, rows: int, verify_cost: float) -> CostModel:
        """Return the model after one round; 0 rows = nothing was verified."""
        draft, verify = self.draft, self.verify
        if drafted:
            kinds = dict(draft)
            kinds[rung] = kinds.get(rung, DraftCost()).updated(drafted, draft_cost)
            draft = tuple(sorted(kinds.items()))
        if rows:
            verify = verify.updated(rows, verify_cost)
        return CostModel(draft, verify)

    def _drafts(self, rung: int) -> DraftCost | None:
        known = [(other, drafts) for other, drafts in self.draft if drafts.samples]
        below = [drafts for other, drafts in known if other <= rung]
        return below[-1] if below else next((drafts for _, drafts in known), None)


def _clipped(residual: float) -> float:
    return min(max(residual, -_CLIP), _CLIP)


def _curve(shape: tuple[tuple[int, int, float], ...], *, share: float) -> tuple[float, ...]:
    """Return the relative cost of counts of 1 to 16: a weighted line, drawn to the measured ones by their samples.

    ``share`` is the slope to assume, over the mean cost of one; the line is never steeper than that of n times one.
    """
    points = {count: (min(samples - _FIRST_DOUBT, _FULL_SAMPLES), exp(offset)) for count, samples, offset in shape}
    weight = sum(w for w, _ in points.values())
    mean_count = sum(w * count for count, (w, _) in points.items()) / weight
    mean_cost = sum(w * cost for w, cost in points.values()) / weight
    steepest = mean_cost / mean_count
    spread = sum(w * (count - mean_count) ** 2 for count, (w, _) in points.items())
    slope = sum(w * (count - mean_count) * (cost - mean_cost) for count, (w, cost) in points.items())
    slope = (slope + _LINE_STRENGTH * min(share * mean_cost, steepest)) / (spread + _LINE_STRENGTH)
    slope = min(max(slope, 0.0), steepest)
    curve: list[float] = []
    for count in range(1, _MOST + 1):
        cost = line = mean_cost + slope * (count - mean_count)
        if count in points:
            samples, measured = points[count]
            cost = line + (measured - line) * samples / (samples + _LINE_STRENGTH)
        curve.append(max(cost, curve[-1]) if curve else cost)
    return tuple(curve)
