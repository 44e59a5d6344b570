"""How far a run is, by steps or by time, decides the learning rate and when to measure."""

from __future__ import annotations

import pytest

from edgeprec.export.distill_pace import MEASUREMENTS, Pace, learning_rate_share


def measured_steps(pace: Pace, *, step_s: float) -> list[int]:
    """Return the steps at which a run measures."""
    steps: list[int] = []
    for step in range(10_000):
        progress = pace.progress(step=step, elapsed_s=step * step_s)
        if pace.is_due(measured=len(steps), progress=progress):
            steps.append(step)
        if progress >= 1.0:
            break
    return steps


@pytest.mark.parametrize("pace", [Pace(steps=200, seconds=1e9), Pace(steps=None, seconds=100.0)])
def test_measurements_are_spread_evenly(pace: Pace) -> None:
    """By steps and by time alike: one before the first step, one behind the last, the rest between."""
    assert measured_steps(pace, step_s=0.5) == list(range(0, 201, 200 // MEASUREMENTS))


def test_steps_do_not_look_at_the_clock() -> None:
    """What is measured, and so which weights are the best, must not depend on speed."""
    pace = Pace(steps=37, seconds=1.0)
    assert measured_steps(pace, step_s=0.001) == measured_steps(pace, step_s=1000.0)
    assert measured_steps(pace, step_s=1.0)[-1] == 37


def test_few_slow_steps_are_all_measured() -> None:
    """A run of two steps measures beginning, middle and end, not twenty times in one place."""
    assert measured_steps(Pace(steps=2, seconds=1.0), step_s=1.0) == [0, 1, 2]


def test_time_ends_a_run() -> None:
    """Without a number of steps the seconds count, and nothing is beyond the end."""
    pace = Pace(steps=None, seconds=60.0)
    assert pace.progress(step=5, elapsed_s=15.0) == 0.25
    assert pace.progress(step=5, elapsed_s=75.0) == 1.0


def test_the_learning_rate_rises_then_falls() -> None:
    """It starts and ends low, peaks once, early, and never leaves (0, 1]."""
    shares = [learning_rate_share(index / 1000) for index in range(1001)]
    peak = shares.index(max(shares))
    assert max(shares) == pytest.approx(1.0)
    assert 20 <= peak <= 40
    assert shares[:peak] == sorted(shares[:peak])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    assert (shares[0], shares[-1]) == pytest.approx((0.02, 0.02))
