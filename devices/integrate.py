"""From stamped readings to a curve of power: pure arithmetic, no clock, no sensor.

Momentary power is joined by straight lines (the trapezoid rule on the real stamps). Two samples too far apart leave a
hole: nothing is invented for it.

A counter of energy moves in steps. The energy between two steps is exact, so it is spread evenly between the moments of
the steps; before the first and after the last step the neighbouring power is carried on, for two steps at most. A pause
in reading a counter loses nothing, because the counter went on counting: such a pause is bridged and listed in
``bridged``. A counter that runs backwards began anew: the interval in which it did is a hole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from edgeprec.devices.curve import Curve, Piece, Span

__all__ = ["Point", "Series", "counter_series", "power_series"]

_REACH_STEPS = 2
_NS_PER_S = 1e9


class Point(NamedTuple):
    """One reading of one rail: mW, or mJ since some start."""

    time_ns: int
    value: float
    is_restart: bool = False  # the counter began anew since the point before


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What the readings of one rail amount to. The times are those of events, for counting them inside a span."""

    curve: Curve
    times_ns: tuple[int, ...]  # every reading
    news_ns: tuple[int, ...]  # readings of power, or steps of a counter
    negatives_ns: tuple[int, ...] = ()
    restarts_ns: tuple[int, ...] = ()
    bridged: tuple[Span, ...] = ()


def power_series(points: Sequence[Point], *, gap_ns: int, hold_ns: int = 0) -> Series:
    """Join readings of momentary power by straight lines.

    Two readings further apart than ``gap_ns`` are not joined. The first and the last reading are held for ``hold_ns``
    outwards: a reading speaks for half a period on either side of itself.
    """
    ordered = _ordered(points)
    times = tuple(point.time_ns for point in ordered)
    return Series(
        curve=Curve(list(_power_pieces(ordered, gap_ns, hold_ns))),
        times_ns=times,
        news_ns=times,
        negatives_ns=tuple(point.time_ns for point in ordered if point.value < 0),
    )


def counter_series(points: Sequence[Point], *, step_ns: int, gap_ns: int) -> Series:
    """Turn readings of an energy counter that moves every ``step_ns`` into power between its steps.

    Readings further apart than ``gap_ns`` are listed as bridged.
    """
    ordered = _without_glitches(_ordered(points))
    runs = _runs(ordered)
    knots = [_knots(run, step_ns) for run in runs]
    pieces = [
        piece for run, run_knots in zip(runs, knots, strict=True) for piece in _counter_pieces(run, run_knots, step_ns)
    ]
    return Series(
        curve=Curve(pieces),
        times_ns=tuple(point.time_ns for point in ordered),
        news_ns=tuple(knot.time_ns for run_knots in knots for knot in run_knots),
        restarts_ns=tuple(run[0].time_ns for run in runs[1:]),
        bridged=tuple(
            Span(left.time_ns, right.time_ns)
            for run in runs
            for left, right in pairwise(run)
            if right.time_ns - left.time_ns > gap_ns
        ),
    )


def _ordered(points: Sequence[Point]) -> list[Point]:
    """Return the points whose time moves on; a reading repeated at the same moment says nothing new."""
    ordered: list[Point] = []
    for point in points:
        if not ordered or point.time_ns > ordered[-1].time_ns:
            ordered.append(point)
    return ordered


def _power_pieces(points: Sequence[Point], gap_ns: int, hold_ns: int) -> Iterator[Piece]:
    if not points:
        return
    first, last = points[0], points[-1]
    if hold_ns > 0:
        yield Piece(first.time_ns - hold_ns, first.time_ns, first.value, first.value)
    for left, right in pairwise(points):
        if right.time_ns - left.time_ns <= gap_ns:
            yield Piece(left.time_ns, right.time_ns, left.value, right.value)
    if hold_ns > 0:
        yield Piece(last.time_ns, last.time_ns + hold_ns, last.value, last.value)


def _without_glitches(points: Sequence[Point]) -> list[Point]:
    """Return the points without single low readings that the next one takes back: polled too fast, NVML answers 0."""
    kept = list(points[:1])
    for index in range(1, len(points)):
        point = points[index]
        following = points[index + 1] if index + 1 < len(points) else None
        is_taken_back = (
            following is not None
            and point.value < kept[-1].value <= following.value
            and not (point.is_restart or following.is_restart)
        )
        if not is_taken_back:
            kept.append(point)
    return kept


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Split where the counter began anew."""
    runs: list[list[Point]] = []
    for point in points:
        if not runs or point.is_restart or point.value < runs[-1][-1].value:
            runs.append([])
        runs[-1].append(point)
    return runs


def _knots(run: Sequence[Point], step_ns: int) -> list[Point]:
    """Return when the counter stepped and to what; the step lies between the reading that saw it and the one before."""
    return [
        Point(right.time_ns - min(right.time_ns - left.time_ns, step_ns) // 2, right.value)
        for left, right in pairwise(run)
        if right.value > left.value
    ]


def _counter_pieces(run: Sequence[Point], knots: Sequence[Point], step_ns: int) -> Iterator[Piece]:
    if not knots:
        return
    start, end = run[0], run[-1]
    if (
        run[1].time_ns - start.time_ns >= _REACH_STEPS * step_ns
    ):  # steps are fine: the first reading is as good as a step
        knots = [Point(start.time_ns - step_ns // 2, start.value), *knots]
    if len(knots) == 1:
        yield _level(start.time_ns, end.time_ns, knots[0].value - start.value)
        return
    pieces = [_level(left.time_ns, right.time_ns, right.value - left.value) for left, right in pairwise(knots)]
    reach_ns = _REACH_STEPS * step_ns
    yield from _carried(max(start.time_ns, knots[0].time_ns - reach_ns), knots[0].time_ns, pieces[0].start_mw)
    yield from pieces
    yield from _carried(knots[-1].time_ns, min(end.time_ns, knots[-1].time_ns + reach_ns), pieces[-1].end_mw)


def _level(start_ns: int, end_ns: int, energy_mj: float) -> Piece:
    power_mw = energy_mj * _NS_PER_S / (end_ns - start_ns)
    return Piece(start_ns, end_ns, power_mw, power_mw)


def _carried(start_ns: int, end_ns: int, power_mw: float) -> Iterator[Piece]:
    if end_ns > start_ns:
        yield Piece(start_ns, end_ns, power_mw, power_mw)
