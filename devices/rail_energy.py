"""The energy of one rail over stretches of time, and how far off it may be."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeprec.devices.curve import Curve, Span
from edgeprec.devices.integrate import Point, Series, counter_series, power_series
from edgeprec.devices.sensor import Quantity, Rail, Sample

__all__ = ["RailEnergy", "Timing", "measure_rail", "rail_series", "refusals"]

_NS_PER_S = 1e9
_GAP_PERIODS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times that decide how sharp a measurement can be."""

    period_ns: int  # between two readings
    sensor_period_ns: int  # between two different values of the sensor
    lag_ns: int = 0

    @property
    def gap_ns(self) -> int:
        """Return the distance from which two readings are not joined."""
        return _GAP_PERIODS * self.period_ns

    def step_ns(self, rail: Rail) -> int:
        """Return the time between two steps of a counter, or two new values of power."""
        return self.sensor_period_ns if rail.step_ms is None else max(1, round(rail.step_ms * 1e6))

    def edge_ns(self, rail: Rail) -> int:
        """Return how far the edge of a span may be off: a period of reading, or the counter's step where longer."""
        return max(self.period_ns, self.step_ns(rail))


@dataclass(frozen=True, slots=True, kw_only=True)
class RailEnergy:
    """One rail over some spans. All energies in millijoules."""

    energy_mj: float
    covered_ns: int
    plus_minus_mj: float
    samples: int
    negatives: int
    resets: int
    gaps: int


def rail_series(rail: Rail, samples: Sequence[Sample], timing: Timing) -> Series:
    """Return the readings of one rail as a series; readings that failed are left out."""
    points = _points(rail.id, samples)
    if rail.quantity is Quantity.ENERGY:
        return counter_series(points, step_ns=timing.step_ns(rail), gap_ns=timing.gap_ns)
    return power_series(points, gap_ns=timing.gap_ns, hold_ns=timing.period_ns // 2)


def _points(rail_id: str, samples: Sequence[Sample]) -> list[Point]:
    points = []
    is_restart = False
    for sample in samples:
        is_restart = is_restart or rail_id in sample.restarts
        value = sample.values.get(rail_id)
        if value is not None:
            points.append(Point(sample.time_ns, value, is_restart))
            is_restart = False
    return points


def refusals(rail: Rail, samples: Sequence[Sample]) -> Counter[str]:
    """Return why readings of a rail failed, and how often."""
    return Counter(sample.reasons[rail.id] for sample in samples if rail.id in sample.reasons)


def measure_rail(rail: Rail, series: Series, spans: Sequence[Span], timing: Timing) -> RailEnergy:
    """Sum a rail over spans that do not overlap.

    The uncertainty is the power at each edge times the period or the counter's step, the change of power times the
    sensor's lag, one step of resolution, and for uncovered time everything between the lowest and the highest power
    seen, zero included. A span shorter than two edges counts as uncertain by all of its energy.
    """
    curve = series.curve
    covered_ns = sum(curve.covered_ns(span) for span in spans)
    uncovered_ns = sum(span.length_ns for span in spans) - covered_ns
    swing_mw = max(curve.high_mw, 0.0) - min(curve.low_mw, 0.0)
    return RailEnergy(
        energy_mj=sum(curve.energy_mj(span) for span in spans),
        covered_ns=covered_ns,
        plus_minus_mj=sum(_edge_error_mj(curve, span, timing.edge_ns(rail), timing.lag_ns) for span in spans)
        + _resolution_mj(rail, covered_ns)
        + swing_mw * uncovered_ns / _NS_PER_S,
        samples=_count(series.times_ns, _touched(spans, timing.period_ns)),
        negatives=_count(series.negatives_ns, _touched(spans, timing.period_ns)),
        resets=_count(series.restarts_ns, spans),
        gaps=_holes(curve, spans),
    )


def _edge_error_mj(curve: Curve, span: Span, edge_ns: int, lag_ns: int) -> float:
    highest_mw = max(abs(curve.high_mw), abs(curve.low_mw))
    start_mw, end_mw = curve.power_mw(span.start_ns), curve.power_mw(span.end_ns)
    start_mw = highest_mw if start_mw is None else start_mw
    end_mw = highest_mw if end_mw is None else end_mw
    edge_mj = (abs(start_mw) + abs(end_mw)) * min(edge_ns, span.length_ns / 2) / _NS_PER_S
    if span.length_ns <= 2 * edge_ns:
        edge_mj = max(edge_mj, abs(curve.energy_mj(span)))
    return edge_mj + abs(end_mw - start_mw) * min(lag_ns, span.length_ns) / _NS_PER_S


def _resolution_mj(rail: Rail, covered_ns: int) -> float:
    if rail.step is None:
        return 0.0
    return rail.step if rail.quantity is Quantity.ENERGY else rail.step * covered_ns / _NS_PER_S


def _count(times_ns: Sequence[int], spans: Sequence[Span]) -> int:
    return sum(bisect_right(times_ns, span.end_ns) - bisect_left(times_ns, span.start_ns) for span in spans)


def _touched(spans: Sequence[Span], period_ns: int) -> list[Span]:
    """Return a single span widened to the readings at its two ends; many spans as they are."""
    if len(spans) != 1:
        return list(spans)
    return [Span(spans[0].start_ns - period_ns, spans[0].end_ns + period_ns)]


def _holes(curve: Curve, spans: Sequence[Span]) -> int:
    """Return how many stretches inside the spans no piece covers; the ends of the curve are not counted."""
    holes = [
        Span(left.end_ns, right.start_ns) for left, right in pairwise(curve.pieces) if right.start_ns > left.end_ns
    ]
    return sum(any(hole.start_ns < span.end_ns and span.start_ns < hole.end_ns for span in spans) for hole in holes)
