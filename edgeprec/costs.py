"""What a draft step and a verifying pass cost here, learned from what they cost before; seconds or joules alike.

A verifying pass of r rows costs ``level * shape(r)``. The level follows every pass, whatever its rows, so a cost that
grows with the context or falls with the clock moves all of them together; the shape is learned slowly. That is how the
cost of a plain step, which is a pass of one row, stays known while only longer passes run. Both are averages of
logarithms with outliers clipped, and of the first two samples the cheaper one counts: neither a stall nor a cold start
passes for a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, log

__all__ = ["CostModel", "StepCost", "VerifyCost"]

_LEVEL_RATE = 1 / 16
_SHAPE_RATE = 1 / 128
_CLIP = 0.5  # of the logarithm: a sample counts as at most 1.65 times what was expected
_MOST_ROWS = 16
_ROW_SHARE = 0.03  # of a pass, what one more row costs until it was measured
_LINE_STRENGTH = 4.0  # samples' worth of the line in a count of rows, and of the assumed slope in the line
_FULL_SAMPLES = 32.0
_FIRST_DOUBT = 0.75  # of the first sample's weight


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of one step of one kind: exp of the mean logarithm of the recent ones."""

    samples: int = 0
    log_cost: float = 0.0

    @property
    def cost(self) -> float | None:
        """Return the expected cost, None before the first sample."""
        return exp(self.log_cost) if self.samples else None

    def updated(self, cost: float) -> StepCost:
        """Return the average with one more sample."""
        if cost <= 0.0:
            return self
        if not self.samples:
            return StepCost(1, log(cost))
        if self.samples == 1:
            return StepCost(2, min(self.log_cost, log(cost)))
        rate = max(1.0 / (self.samples + 1), _LEVEL_RATE)
        return StepCost(self.samples + 1, self.log_cost + rate * _clipped(log(cost) - self.log_cost))


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """The cost of an FP16 pass by its rows, 1 to 16. ``shape`` holds (rows, samples, log of cost over level).

    ``curve[r - 1]`` is the cost of r rows over the level: a line through all that was measured, and where r itself was
    measured often, that. More rows never cost less.
    """

    samples: int = 0
    log_level: float = 0.0
    shape: tuple[tuple[int, int, float], ...] = ()
    curve: tuple[float, ...] = ()

    def cost(self, rows: int) -> float | None:
        """Return the expected cost of a pass, None before the first."""
        if not self.curve:
            return None
        return exp(self.log_level) * self.curve[min(rows, _MOST_ROWS) - 1]

    def has_measured(self, rows: int) -> bool:
        """Whether a pass of exactly so many rows was seen."""
        return any(known == rows for known, _, _ in self.shape)

    def updated(self, rows: int, cost: float) -> VerifyCost:
        """Return the model with one more pass."""
        if cost <= 0.0:
            return self
        value = log(cost) - self.log_level if self.samples else 0.0
        level = self.log_level if self.samples else log(cost)
        known = {count: (samples, offset) for count, samples, offset in self.shape}
        samples, offset = known.get(rows, (0, self._first_offset(rows, value)))
        if samples < 2:
            offset = min(offset, value)
        else:
            residual = _clipped(value - offset)
            offset += max(1.0 / (samples + 1), _SHAPE_RATE) * residual
            level += _LEVEL_RATE * residual
        known[rows] = (samples + 1, offset)
        shape = tuple((count, *entry) for count, entry in sorted(known.items()))
        return VerifyCost(self.samples + 1, level, shape, _curve(shape))

    def _first_offset(self, rows: int, value: float) -> float:
        """Return what a first pass of so many rows counts as: no outlier from the line through the others."""
        if not self.curve:
            return value
        expected = log(self.curve[min(rows, _MOST_ROWS) - 1])
        return expected + _clipped(value - expected)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Draft steps by gear rung and verifying passes by rows, in one unit."""

    draft: tuple[tuple[int, StepCost], ...] = ()
    verify: VerifyCost = field(default_factory=VerifyCost)

    def draft_step(self, rung: int = 0) -> float | None:
        """Return the cost of one draft step on a rung; one not yet seen costs what the nearest cheaper one does."""
        known = [(other, step.cost) for other, step in self.draft if step.cost is not None]
        below = [cost for other, cost in known if other <= rung]
        return below[-1] if below else next((cost for _, cost in known), None)

    def draft_samples(self, rung: int = 0) -> int:
        """Return how many draft rounds the cost of a step on this rung rests on."""
        return max((step.samples for other, step in self.draft if other <= rung), default=0)

    def round_cost(self, drafted: int, *, rung: int = 0) -> float | None:
        """Return the cost of drafting and verifying so many tokens; 0 is a plain step."""
        verify = self.verify.cost(drafted + 1)
        step = self.draft_step(rung) if drafted else 0.0
        return None if verify is None or step is None else drafted * step + verify

    def with_step(self, cost: float | None) -> CostModel:
        """Return the model with every draft step at ``cost`` at most, as far as steps were measured at all."""
        if cost is None:
            return self
        steps = ((rung, replace(step, log_cost=min(step.log_cost, log(cost)))) for rung, step in self.draft)
        return CostModel(tuple(steps), self.verify)

    def updated(self, *, rung: int, drafted: int, draft_cost: float, rows: int, verify_cost: float) -> CostModel:
        """Return the model after one round; 0 rows = nothing was verified."""
        draft, verify = self.draft, self.verify
        if drafted:
            steps = dict(draft)
            steps[rung] = steps.get(rung, StepCost()).updated(draft_cost / drafted)
            draft = tuple(sorted(steps.items()))
        if rows:
            verify = verify.updated(rows, verify_cost)
        return CostModel(draft, verify)


def _clipped(residual: float) -> float:
    return min(max(residual, -_CLIP), _CLIP)


def _curve(shape: tuple[tuple[int, int, float], ...]) -> tuple[float, ...]:
    """Return the relative cost of 1 to 16 rows: a weighted line, drawn to the measured counts by their samples."""
    points = {rows: (min(samples - _FIRST_DOUBT, _FULL_SAMPLES), exp(offset)) for rows, samples, offset in shape}
    weight = sum(w for w, _ in points.values())
    mean_rows = sum(w * rows for rows, (w, _) in points.items()) / weight
    mean_cost = sum(w * cost for w, cost in points.values()) / weight
    spread = sum(w * (rows - mean_rows) ** 2 for rows, (w, _) in points.items())
    slope = sum(w * (rows - mean_rows) * (cost - mean_cost) for rows, (w, cost) in points.items())
    slope = (slope + _LINE_STRENGTH * _ROW_SHARE * mean_cost) / (spread + _LINE_STRENGTH)
    slope = min(max(slope, 0.0), mean_cost / mean_rows)  # r rows cost no more than r passes
    curve: list[float] = []
    for rows in range(1, _MOST_ROWS + 1):
        cost = line = mean_cost + slope * (rows - mean_rows)
        if rows in points:
            samples, measured = points[rows]
            cost = line + (measured - line) * samples / (samples + _LINE_STRENGTH)
        curve.append(max(cost, curve[-1]) if curve else cost)
    return tuple(curve)
