"""Energy from stamped readings: power by the trapezoid rule with gaps, counters by the times of their steps."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.devices.curve import Curve, Piece, Span
from edgeprec.devices.integrate import Point, counter_series, power_series

MS = 1_000_000
S = 1_000_000_000
PERIOD = 50 * MS
GAP = 2 * PERIOD


def stamps(*, seconds: float, period_ns: int = PERIOD, jitter: float = 0.0, seed: int = 0) -> list[int]:
    """Return sampling moments from before 0 to after the end, each moved by up to ``jitter`` periods."""
    dice = random.Random(seed)
    count = int(seconds * S / period_ns) + 3
    return [round((i - 1 + dice.uniform(-jitter, jitter)) * period_ns) for i in range(count)]


def power_points(times: list[int], power_w: object) -> list[Point]:
    """Return exact readings of a power curve in mW."""
    return [Point(t, power_w(t / S) * 1000) for t in times]


CURVES = {
    "constant": (lambda t: 12.5, lambda t: 12.5 * t),
    "ramp": (lambda t: 5 + 2 * t, lambda t: 5 * t + t * t),
    "sine 0.5 Hz": (
        lambda t: 20 + 8 * math.sin(math.pi * t),
        lambda t: 20 * t + 8 / math.pi * (1 - math.cos(math.pi * t)),
    ),
    "sine 2 Hz": (
        lambda t: 20 + 8 * math.sin(4 * math.pi * t),
        lambda t: 20 * t + 2 / math.pi * (1 - math.cos(4 * math.pi * t)),
    ),
    "step at 3.21 s": (lambda t: 4.0 if t < 3.21 else 30.0, lambda t: 4 * min(t, 3.21) + 30 * max(0.0, t - 3.21)),
    "decode rounds, 0.7 s": (
        lambda t: 30.0 if t % 0.7 < 0.4 else 12.0,
        lambda t: (t // 0.7) * 15.6 + min(t % 0.7, 0.4) * 30 + max(0.0, t % 0.7 - 0.4) * 12,
    ),
    "below zero": (lambda t: -0.392 + 0.1 * math.sin(t), lambda t: -0.392 * t + 0.1 * (1 - math.cos(t))),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("seed", range(5))
def test_analytic_curve_at_20_hz_with_jitter(name: str, seed: int) -> None:
    """A known power curve sampled at 20 Hz with 30 % jitter integrates to within 1 % over 10 s."""
    power, energy = CURVES[name]
    points = power_points(stamps(seconds=10, jitter=0.3, seed=seed), power)
    series = power_series(points, gap_ns=GAP)
    measured = series.curve.energy_mj(Span(0, 10 * S)) / 1000
    truth = energy(10.0)
    assert abs(measured - truth) < 0.01 * abs(truth), f"{measured} J against {truth} J"
    assert series.curve.covered_ns(Span(0, 10 * S)) == 10 * S


def test_trapezoid_is_exact_for_a_ramp_on_uneven_stamps() -> None:
    """Straight lines are integrated without error whatever the spacing, because the real stamps are used."""
    times = [0, 13 * MS, 50 * MS, 140 * MS, 150 * MS, 200 * MS]
    curve = power_series([Point(t, 1000 + t / MS) for t in times], gap_ns=GAP).curve
    assert curve.energy_mj(Span(0, 200 * MS)) == pytest.approx(0.2 * 1100)
    assert curve.energy_mj(Span(40 * MS, 60 * MS)) == pytest.approx(0.02 * 1050)


def test_ten_samples_at_ten_watts_then_none() -> None:
    """A mean of energy, not of the last two values: 9.5 W over 10 intervals, 9.09 W over the 11 samples' own time."""
    points = [Point(i * PERIOD, 10_000.0) for i in range(10)] + [Point(10 * PERIOD, 0.0)]
    between = power_series(points, gap_ns=GAP).curve
    assert between.energy_mj(Span(0, 10 * PERIOD)) / (0.5 * 1000) == pytest.approx(9.5)
    own = power_series(points, gap_ns=GAP, hold_ns=PERIOD // 2).curve
    span = Span(-PERIOD // 2, 10 * PERIOD + PERIOD // 2)
    assert own.covered_ns(span) == span.length_ns
    assert own.energy_mj(span) / (0.55 * 1000) == pytest.approx(100 / 11)


@pytest.mark.parametrize(
    ("missing", "uncovered_periods"),
    [((), 0), ((5,), 0), ((5, 6), 3), ((5, 6, 7), 4), ((5, 9), 0), ((5, 6, 11, 12, 13), 7)],
)
def test_gap_is_not_bridged(missing: tuple[int, ...], uncovered_periods: int) -> None:
    """Two samples further apart than two periods leave a hole of exactly that length and no energy inside."""
    points = [Point(i * PERIOD, 8000.0) for i in range(21) if i not in missing]
    curve = power_series(points, gap_ns=GAP).curve
    span = Span(0, 20 * PERIOD)
    assert span.length_ns - curve.covered_ns(span) == uncovered_periods * PERIOD
    assert curve.energy_mj(span) == pytest.approx(8 * 0.05 * (20 - uncovered_periods) * 1000)


def test_negative_samples_are_kept() -> None:
    """A gated rail that reads one step below zero lowers the sum and is counted, never clamped."""
    values = [-392.0, 392.0, -392.0, 0.0, -392.0]
    series = power_series([Point(i * PERIOD, v) for i, v in enumerate(values)], gap_ns=GAP)
    assert len(series.negatives_ns) == 3
    assert series.curve.energy_mj(Span(0, 4 * PERIOD)) == pytest.approx(-392 * 0.05)


def test_repeated_and_backward_stamps_add_nothing() -> None:
    """A sample seen twice, or one from the past, leaves the integral as it was."""
    points = [Point(0, 1000.0), Point(PERIOD, 1000.0)]
    noisy = [points[0], points[0], Point(-5, 9e9), points[1], Point(PERIOD, 9e9)]
    assert power_series(noisy, gap_ns=GAP).curve.pieces == power_series(points, gap_ns=GAP).curve.pieces


@given(
    values=st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=40),
    cuts=st.lists(st.integers(0, 39 * PERIOD), max_size=6),
    dropped=st.sets(st.integers(0, 39)),
)
def test_parts_add_up_to_the_whole(values: list[float], cuts: list[int], dropped: set[int]) -> None:
    """However a window is cut, the energies and the covered times of the parts sum to those of the whole."""
    points = [Point(i * PERIOD, v) for i, v in enumerate(values) if i not in dropped]
    curve = power_series(points, gap_ns=GAP, hold_ns=PERIOD // 2).curve
    edges = sorted({-PERIOD, *cuts, 41 * PERIOD})
    parts = [Span(a, b) for a, b in pairwise(edges)]
    whole = Span(edges[0], edges[-1])
    assert sum(map(curve.covered_ns, parts)) == curve.covered_ns(whole)
    assert math.isclose(sum(map(curve.energy_mj, parts)), curve.energy_mj(whole), rel_tol=1e-9, abs_tol=1e-3)
    assert 0 <= curve.covered_ns(whole) <= whole.length_ns


def counter_points(
    *, power_w: float, seconds: float, step_ns: int = 100 * MS, phase_ns: int = 37 * MS, poll_ns: int = PERIOD
) -> list[Point]:
    """Return polls of a counter that is brought up to date every ``step_ns``, as NVML's is."""
    start_mj = 5_000_000.0
    points = []
    for t in range(0, round(seconds * S) + 1, poll_ns):
        steps = (t + phase_ns) // step_ns
        points.append(Point(t, start_mj + steps * power_w * step_ns / 1e6))
    return points


@pytest.mark.parametrize("phase_ms", [0, 1, 37, 50, 99])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0])
def test_counter_is_interpolated_by_its_steps(phase_ms: int, seconds: float) -> None:
    """A constant load is recovered exactly from a counter of 100 ms steps, wherever the window lies against them."""
    points = counter_points(power_w=350, seconds=seconds, phase_ns=phase_ms * MS)
    series = counter_series(points, step_ns=100 * MS, gap_ns=GAP)
    span = Span(0, round(seconds * S))
    assert series.curve.covered_ns(span) == span.length_ns
    assert series.curve.energy_mj(span) / 1000 == pytest.approx(350 * seconds, rel=1e-9)


def test_counter_without_a_step_covers_nothing() -> None:
    """A counter that did not move gives no energy and no coverage rather than zero joules."""
    series = counter_series([Point(0, 7.0), Point(40 * MS, 7.0)], step_ns=100 * MS, gap_ns=GAP)
    assert series.curve.pieces == ()
    assert series.news_ns == ()


def test_single_step_is_the_plain_difference() -> None:
    """One step in the window gives the difference of the two readings."""
    series = counter_series([Point(0, 100.0), Point(60 * MS, 130.0)], step_ns=100 * MS, gap_ns=GAP)
    assert series.curve.energy_mj(Span(0, 60 * MS)) == pytest.approx(30.0)


def test_fine_counter_is_the_plain_difference() -> None:
    """A counter that moves every millisecond, read every 50, loses nothing at the ends."""
    points = [Point(i * PERIOD, 1000.0 + i * 2.5) for i in range(41)]
    curve = counter_series(points, step_ns=MS, gap_ns=GAP).curve
    assert curve.energy_mj(Span(0, 2 * S)) == pytest.approx(100.0, rel=1e-3)


def test_pause_in_reading_a_counter_loses_nothing_and_is_listed() -> None:
    """The counter goes on while nobody reads it: its energy is exact across the pause, and the pause is reported."""
    points = [p for p in counter_points(power_w=200, seconds=6) if not 2 * S < p.time_ns < 4 * S]
    series = counter_series(points, step_ns=100 * MS, gap_ns=GAP)
    assert series.curve.energy_mj(Span(0, 6 * S)) / 1000 == pytest.approx(1200, rel=1e-6)
    assert series.bridged == (Span(2 * S, 4 * S),)


@pytest.mark.parametrize("is_declared", [False, True])
def test_counter_reset_drops_one_interval(is_declared: bool) -> None:
    """A counter that begins anew loses the interval in which it did and nothing else, seen or declared."""
    before = counter_points(power_w=200, seconds=3)
    shift = -5_000_000.0 if not is_declared else 9e9
    after = [Point(p.time_ns + 3 * S + PERIOD, p.value + shift) for p in counter_points(power_w=200, seconds=3)]
    if is_declared:
        after[0] = after[0]._replace(is_restart=True)
    series = counter_series(before + after, step_ns=100 * MS, gap_ns=GAP)
    span = Span(0, 6 * S + PERIOD)
    assert len(series.restarts_ns) == 1
    assert series.curve.covered_ns(span) == 6 * S
    assert series.curve.energy_mj(span) / 1000 == pytest.approx(1200, rel=1e-6)


def test_single_zero_of_a_counter_is_taken_back() -> None:
    """A zero answered to a poll that came too fast must not turn the whole count since boot into energy."""
    points = counter_points(power_w=200, seconds=3)
    points[20] = points[20]._replace(value=0.0)
    series = counter_series(points, step_ns=100 * MS, gap_ns=GAP)
    assert series.restarts_ns == ()
    assert series.curve.energy_mj(Span(0, 3 * S)) / 1000 == pytest.approx(600, rel=1e-6)


def test_stalled_counter_is_carried_on_for_two_steps_only() -> None:
    """Power is not invented after the last step of a counter that stopped."""
    points = counter_points(power_w=200, seconds=2)
    stalled = [Point(2 * S + i * PERIOD, points[-1].value) for i in range(1, 41)]
    curve = counter_series(points + stalled, step_ns=100 * MS, gap_ns=GAP).curve
    assert 2 * S < curve.covered_ns(Span(0, 4 * S)) < 2.25 * S


def test_curve_outside_its_pieces() -> None:
    """Outside the pieces there is no power, no energy and no coverage."""
    curve = Curve([Piece(10, 20, 5.0, 7.0), Piece(40, 60, 7.0, 7.0)])
    assert [curve.power_mw(t) for t in (0, 10, 15, 30, 60, 61)] == [None, 5.0, 6.0, None, 7.0, None]
    assert curve.covered_ns(Span(-100, 100)) == 30
    assert curve.energy_mj(Span(21, 39)) == 0.0
    assert (curve.low_mw, curve.high_mw) == (5.0, 7.0)
