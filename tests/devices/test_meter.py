"""Windows of energy: what a reading says, what it refuses to say, and what happens when a sensor fails midway."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.meter import Meter
from edgeprec.devices.reading import Method
from edgeprec.devices.sensor import Scope
from edgeprec.errors import ConfigError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
measure, constant, counting = fake.measure, fake.constant, fake.counting
S, MS = fake.S, fake.MS


def test_window_reads_joules_and_carries_its_evidence() -> None:
    """A constant 10 W over 3 s is 30 J, with source, rail, scope, samples, period, coverage and uncertainty."""
    reading = measure(fake.Bench(constant(r1=10_000.0), lag_ms=5.0), 3.0).reading
    assert reading.joules == pytest.approx(30.0)
    assert (reading.source, reading.rails, reading.is_total, reading.scope) == ("fake", ("VDD_IN",), True, Scope.MODULE)
    assert (reading.samples, reading.period_ms, reading.lag_ms, reading.coverage) == (61, 50.0, 5.0, 1.0)
    assert reading.plus_minus_joules == pytest.approx(2 * 10 * 0.05)
    assert reading.method is Method.INTEGRATED_POWER
    assert (reading.resets, reading.negatives, reading.interpolated, reading.note) == (0, 0, False, None)
    assert reading.watts == pytest.approx(10.0)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 9.97])
def test_curve_is_followed_to_one_percent(seconds: float) -> None:
    """A sine of power, sampled at 20 Hz by the meter itself, integrates to within 1 %."""
    window = measure(fake.Bench(lambda ns: {"r1": 20_000 + 8_000 * math.sin(math.pi * ns / S)}), seconds)
    truth = 20 * seconds + 8 / math.pi * (1 - math.cos(math.pi * seconds))
    assert window.reading.joules == pytest.approx(truth, rel=0.01)


def test_lost_samples_lower_coverage_and_widen_plus_minus() -> None:
    """Two seconds without samples are not bridged: coverage 0.8 and an uncertainty that spans the truth."""
    whole = measure(fake.Bench(constant(r1=10_000.0)), 10.0).reading
    bench = fake.Bench(constant(r1=10_000.0))
    bench.skipped = lambda ns: 3 * S < ns < 5 * S
    holed = measure(bench, 10.0).reading
    assert holed.coverage == pytest.approx(0.8)
    assert holed.joules == pytest.approx(80.0)
    assert holed.joules + holed.plus_minus_joules >= 100.0 > whole.plus_minus_joules
    assert "1 gap in VDD_IN: 2.00 s not measured and not bridged" in holed.note


def test_failed_reads_count_as_lost_samples() -> None:
    """Readings that fail for a while leave a gap, and the note says what the sensor answered."""
    bench = fake.Bench(lambda ns: {"r1": "ETIMEDOUT (110)" if S < ns < 2 * S else 10_000.0})
    reading = measure(bench, 4.0).reading
    assert reading.coverage == pytest.approx(0.75)
    assert "VDD_IN failed 19 times: ETIMEDOUT (110)" in reading.note


def test_nothing_read_is_none_with_the_reason() -> None:
    """A rail that never answers gives None and its reason, not zero joules."""
    window = measure(fake.Bench(constant(r1="ENODATA (61)")), 2.0)
    assert window.reading is None
    assert window.note == "VDD_IN not measured: ENODATA (61)"


@pytest.mark.parametrize(("seconds", "says"), [(0.02, "too short"), (5.0, "did not move in 5.0 s")])
def test_counter_that_did_not_step_is_none(seconds: float, says: str) -> None:
    """A window without a step of the counter is None: too short, or stuck when it should have moved."""
    window = measure(fake.Bench(constant(gpu0=77.0), rails=(fake.counter_rail(),)), seconds)
    assert window.reading is None
    assert says in window.note


def test_counter_window() -> None:
    """A counter's joules come from its steps; the uncertainty is one step of power at each end."""
    reading = measure(fake.Bench(counting(350.0), rails=(fake.counter_rail(),)), 10.0).reading
    assert reading.joules == pytest.approx(3500.0)
    assert reading.method is Method.COUNTER
    assert reading.plus_minus_joules == pytest.approx(2 * 350 * 0.1)
    assert reading.interpolated is False


@pytest.mark.parametrize(("seconds", "expected"), [(1.9, True), (2.1, False)])
def test_below_twenty_steps_is_interpolated(seconds: float, expected: bool) -> None:
    """A window of fewer than twenty counter steps says that its value is interpolated."""
    assert measure(fake.Bench(counting(350.0), rails=(fake.counter_rail(),)), seconds).reading.interpolated is expected


@pytest.mark.parametrize(("seconds", "expected"), [(2.9, True), (3.1, False)])
def test_below_ten_lags_is_interpolated(seconds: float, expected: bool) -> None:
    """A window of fewer than ten sensor lags says that its value is interpolated."""
    assert measure(fake.Bench(constant(r1=5.0), lag_ms=300.0), seconds).reading.interpolated is expected


def test_counter_reset_and_pause() -> None:
    """A reset costs one interval and is counted; a pause in reading costs nothing and is said."""
    steps = counting(100.0)
    bench = fake.Bench(
        lambda ns: {"gpu0": steps(ns)["gpu0"] - (1e9 if ns > 4 * S else 0)}, rails=(fake.counter_rail(),)
    )
    bench.skipped = lambda ns: 6 * S < ns < 7 * S
    reading = measure(bench, 10.0).reading
    assert reading.resets == 1
    assert reading.coverage == pytest.approx(0.995)
    assert reading.joules == pytest.approx(995.0, rel=0.002)
    assert "began anew 1 time" in reading.note
    assert "1 pause in reading NVIDIA H200, up to 1.00 s, bridged" in reading.note


def test_negative_samples_are_summed_and_counted() -> None:
    """Thor's gated GPU rail: -392 mW stays -392 mW in the sum."""
    reading = measure(fake.Bench(constant(r1=-392.0)), 10.0).reading
    assert reading.joules == pytest.approx(-3.92)
    assert reading.negatives == reading.samples
    assert "below zero, kept" in reading.note


def test_a_sensor_that_dies_keeps_what_was_measured() -> None:
    """The series ends: joules up to there, coverage, a wide uncertainty and the reason; later windows are None."""
    bench = fake.Bench(constant(r1=10_000.0), dies_at_ns=4 * S)
    window = measure(bench, 10.0)
    assert window.reading.joules == pytest.approx(39.75)
    assert window.reading.coverage == pytest.approx(0.3975)
    assert window.reading.joules + window.reading.plus_minus_joules >= 100.0
    assert "the sensor ended 4.0 s into the window: the bus went away" in window.reading.note
    later = measure(bench, 1.0)
    assert later.reading is None
    assert "the sensor ended: the bus went away" in later.note
    assert bench.meter.ended_note == "the bus went away: check the cable"


def test_an_exception_in_the_window_leaves_a_reading() -> None:
    """The energy of work that failed is still measured, and the exception passes through."""
    bench = fake.Bench(constant(r1=10_000.0))
    window = bench.meter.window("work")

    def work() -> None:
        with window:
            bench.run(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert window.reading.joules == pytest.approx(10.0)
    assert not bench.samplers[-1].is_running


def test_a_window_of_no_duration_is_none() -> None:
    """A window that took no time is too short, not an error."""
    bench = fake.Bench(constant(r1=10_000.0))
    with bench.meter.window("nothing") as window:
        pass
    assert window.reading is None
    assert "too short" in window.note


def test_idle_baseline_is_carried_by_later_readings() -> None:
    """Joules above idle stand beside the gross joules, from a baseline of the same power mode."""
    bench = fake.Bench(lambda ns: {"r1": 4_000.0 if ns < 11 * S else 10_000.0})
    bench.meter.power_mode = "MODE_15W"
    idle = bench.meter.measure_idle(10.0)
    assert (idle.watts, idle.power_mode, idle.note) == (pytest.approx(4.0), "MODE_15W", None)
    bench.run(1.5)
    reading = measure(bench, 5.0).reading
    assert (reading.joules, reading.joules_above_idle) == (pytest.approx(50.0), pytest.approx(30.0))
    assert (reading.idle_watts, reading.power_mode) == (pytest.approx(4.0), "MODE_15W")
    bench.meter.power_mode = "MAXN"
    other = measure(bench, 5.0).reading
    assert (other.idle_watts, other.joules_above_idle) == (None, None)
    assert "idle baseline was taken in the power mode MODE_15W" in other.note


def test_short_or_missing_idle_baseline_says_so() -> None:
    """A baseline under ten seconds is marked; one without a sensor is None with the reason."""
    assert "shorter than 10 s" in fake.Bench(constant(r1=1.0)).meter.measure_idle(2.0).note
    missing = fake.Bench(constant(r1="EIO (5)")).meter.measure_idle(10.0)
    assert (missing.watts, missing.note) == (None, "VDD_IN not measured: EIO (5)")


def test_both_ends_wait_for_the_accelerator() -> None:
    """The queue is drained before each end is stamped, or a window would lose its tail."""
    bench = fake.Bench(constant(r1=10_000.0))
    bench.meter._synchronize = lambda: bench.clock.advance(S)
    window = measure(bench, 1.0)
    assert window.end_ns - window.start_ns == 2 * S


def test_a_failing_synchronize_does_not_leave_the_sampler_running() -> None:
    """An accelerator error at the end of a window passes through, and the sampling stops."""
    bench = fake.Bench(constant(r1=10_000.0))
    window = bench.meter.window("work")

    def fail() -> None:
        raise RuntimeError("device lost")

    def work() -> None:
        with window:
            bench.run(1.0)
            bench.meter._synchronize = fail

    with pytest.raises(RuntimeError, match="device lost"):
        work()
    assert not bench.samplers[-1].is_running
    assert window.reading is not None


@pytest.mark.parametrize("period_ms", [0, -1, float("nan")])
def test_period_must_be_positive(period_ms: float) -> None:
    """A period of zero is refused with the value and a suggestion."""
    bench = fake.Bench(constant(r1=1.0))
    with pytest.raises(ConfigError, match="expected more than 0"):
        Meter(bench.sensor, period_ms=period_ms)


def test_a_window_is_used_once() -> None:
    """Entering a window again would mix two measurements."""
    bench = fake.Bench(constant(r1=1.0))
    window = measure(bench, 1.0)
    with pytest.raises(RuntimeError, match="used already"), window:
        pass
