"""Windows of energy: what a reading says, what it refuses to say, and what happens when a sensor fails midway."""

from __future__ import annotations

import json
import math
import runpy
import threading
import time
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.meter import Meter
from edgeprec.devices.meter_thread import SamplingThread, next_deadline_ns
from edgeprec.devices.reading import EnergyReading, Method
from edgeprec.devices.sensor import Rail, Sample, Scope, Total
from edgeprec.devices.window import Window
from edgeprec.errors import ConfigError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
S = fake.S
MS = fake.MS


def measure(bench: object, seconds: float) -> Window:
    """Run one window of so many seconds."""
    with bench.meter.window("work") as window:
        bench.run(seconds)
    return window


def constant(**values_mw: float | str) -> object:
    """Return a script that always answers the same."""
    return lambda _: values_mw


def counting(power_w: float, *, step_ms: int = 100, rail: str = "gpu0", phase_ms: int = 37) -> object:
    """Return the script of a counter that moves every ``step_ms``."""
    return lambda ns: {rail: 1e9 + (ns + phase_ms * MS) // (step_ms * MS) * power_w * step_ms}


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


AGX_RAILS = (
    Rail(id="1-0040:1", label="VDD_GPU_SOC", step=240.0),
    Rail(id="1-0040:2", label="VDD_CPU_CV", step=240.0),
    Rail(id="1-0040:3", label="VIN_SYS_5V0", step=100.0),
    Rail(id="1-0041:2", label="VDDQ_VDD2_1V8AO", parent="1-0040:3"),
)
AGX_TOTAL = Total(
    rail_ids=("1-0040:1", "1-0040:2", "1-0040:3"), scope=Scope.MODULE_COMPUTED, evidence="AGX Orin: sum of three rails"
)
AGX_MW = {"1-0040:1": 3362.24, "1-0040:2": 480.32, "1-0040:3": 4868.64, "1-0041:2": 397.44}


def test_total_is_the_declared_rails_and_no_other() -> None:
    """The AGX Orin tree sums to 8711.2 mW: neither the 5 V rail alone nor its child on top."""
    window = measure(fake.Bench(constant(**AGX_MW), rails=AGX_RAILS, total=AGX_TOTAL), 10.0)
    assert window.reading.joules == pytest.approx(87.112)
    assert window.reading.rails == ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
    assert window.reading.plus_minus_joules == pytest.approx(2 * 8.7112 * 0.05 + 10 * 0.58)
    assert window.by_rail["1-0041:2"].reading.joules == pytest.approx(3.9744)
    assert window.by_rail["1-0041:2"].reading.is_total is False


def test_partial_rails_are_never_the_total() -> None:
    """With one rail of three unreadable the sum is given, but not as the total, and the missing rail is named."""
    script = constant(**{**AGX_MW, "1-0040:2": "EIO (5)"})
    bench = fake.Bench(script, rails=AGX_RAILS, total=AGX_TOTAL)
    with bench.meter.window("work") as window:
        bench.run(10.0)
        assert bench.meter.latest_total_mw() is None
        assert bench.meter.latest_note == "VDD_CPU_CV not measured: EIO (5)"
    assert window.reading.is_total is False
    assert window.reading.rails == ("VDD_GPU_SOC", "VIN_SYS_5V0")
    assert "VDD_CPU_CV not measured: EIO (5)" in window.reading.note


def test_unknown_total_is_none_but_each_rail_is_there() -> None:
    """A board without a known total gives no total, says why, and still has every rail apart."""
    note = "no total known for nvidia,p9999"
    window = measure(fake.Bench(constant(**AGX_MW), rails=AGX_RAILS, total=None, total_note=note), 2.0)
    assert (window.reading, window.note) == (None, note)
    assert window.by_rail["1-0040:3"].reading.joules == pytest.approx(9.73728)


def test_a_single_rail_without_a_known_total_is_not_the_total() -> None:
    """One rail and no plan: its energy is given with is_total false and without a scope."""
    reading = measure(fake.Bench(constant(r1=1000.0), total=None, total_note="unknown board"), 2.0).reading
    assert (reading.joules, reading.is_total, reading.scope) == (pytest.approx(2.0), False, None)


def test_partial_and_shared_totals_say_so() -> None:
    """Two GPUs of which one answers are no total; a GPU split by MIG is marked as shared."""
    rails = (fake.counter_rail(),)
    partial = Total(rail_ids=("gpu0",), scope=Scope.GPU, evidence="nvml", is_partial=True, is_shared=True)
    bench = fake.Bench(counting(100.0), rails=rails, total=partial, total_note="gpu1 gives no power")
    reading = measure(bench, 3.0).reading
    assert (reading.is_total, reading.is_shared) == (False, True)
    assert "gpu1 gives no power" in reading.note


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


def test_phases_split_the_window() -> None:
    """Marks split the joules by phase; they sum to the window and are flagged as interpolated."""
    bench = fake.Bench(lambda ns: {"r1": 30_000.0 if ns % S < 400 * MS else 12_000.0})
    with bench.meter.window("decode") as window:
        for _ in range(10):
            window.mark("draft")
            bench.run(0.4)
            window.mark("verify")
            bench.run(0.6)
    draft, verify = window.by_phase["draft"], window.by_phase["verify"]
    assert draft.joules + verify.joules == pytest.approx(window.reading.joules)
    assert draft.joules == pytest.approx(120.0, rel=0.1)
    assert verify.joules == pytest.approx(72.0, rel=0.1)
    assert draft.interpolated is True
    assert (draft.seconds, verify.seconds) == (pytest.approx(4.0), pytest.approx(6.0))


def test_phases_shorter_than_the_sensor_can_tell_apart_are_uncertain() -> None:
    """Thousands of phases of 2 ms add up to the window, and each sum is uncertain by all of itself."""
    bench = fake.Bench(constant(r1=10_000.0))
    with bench.meter.window("decode") as window:
        for i in range(4000):
            window.mark("draft" if i % 2 else "verify")
            bench.clock.advance(2 * MS)
            if i % 25 == 24:
                bench.samplers[-1].sample()
    draft = window.by_phase["draft"]
    assert draft.joules == pytest.approx(40.0)
    assert draft.joules + window.by_phase["verify"].joules == pytest.approx(window.reading.joules)
    assert draft.plus_minus_joules == pytest.approx(40.0)


def test_phases_of_no_duration_and_time_before_the_first_mark() -> None:
    """A phase that took no time is None with a reason; time before the first mark belongs to no phase."""
    bench = fake.Bench(constant(r1=10_000.0))
    with bench.meter.window("run") as window:
        bench.run(1.0)
        window.mark("empty")
        window.mark("prefill")
        bench.run(2.0)
    assert window.by_phase["empty"] is None
    assert "took no time" in window.phase_notes["empty"]
    assert window.by_phase["prefill"].joules == pytest.approx(20.0)


def test_phases_without_a_sensor_are_none() -> None:
    """Phases of a window whose rail never answered are None with the rail's reason."""
    bench = fake.Bench(constant(r1="EACCES (13)"))
    with bench.meter.window("run") as window:
        window.mark("prefill")
        bench.run(1.0)
    assert window.by_phase == {"prefill": None}
    assert "EACCES (13)" in window.phase_notes["prefill"]


def test_nested_windows_share_the_samples() -> None:
    """An inner window measures its own time, the outer one all of it, with one sampler between them."""
    bench = fake.Bench(lambda ns: {"r1": 10_000.0 if ns < 2 * S else 20_000.0})
    with bench.meter.window("outer") as outer:
        bench.run(2.0)
        with bench.meter.window("inner") as inner:
            bench.run(3.0)
        bench.run(1.0)
    assert inner.reading.joules == pytest.approx(60.0, rel=0.01)
    assert outer.reading.joules == pytest.approx(100.0, rel=0.01)
    assert len(bench.samplers) == 1
    assert len(outer.samples) > len(inner.samples) > 50


def test_overlapping_windows() -> None:
    """Windows of two requests may overlap without nesting: each has the joules of its own time."""
    bench = fake.Bench(lambda ns: {"r1": 10_000.0})
    first, second = bench.meter.window("first"), bench.meter.window("second")
    with ExitStack() as later:
        with first:
            bench.run(2.0)
            later.enter_context(second)
            bench.run(1.0)
        bench.run(4.0)
    assert first.reading.joules == pytest.approx(30.0)
    assert second.reading.joules == pytest.approx(50.0)
    assert not bench.samplers[-1].is_running


def test_a_window_of_no_duration_is_none() -> None:
    """A window that took no time is too short, not an error."""
    bench = fake.Bench(constant(r1=10_000.0))
    with bench.meter.window("nothing") as window:
        pass
    assert window.reading is None
    assert "too short" in window.note


def test_an_assumed_total_says_so() -> None:
    """A total that is only assumed carries its evidence in the note."""
    total = Total(rail_ids=("r1",), scope=Scope.BOARD_INPUT, evidence="VIN is the only input", is_assumed=True)
    note = measure(fake.Bench(constant(r1=1.0), total=total), 1.0).note
    assert note == "the total is assumed: VIN is the only input"


def test_sampling_runs_only_inside_windows_or_the_meter() -> None:
    """The thread starts with the first user and stops with the last one."""
    bench = fake.Bench(constant(r1=1.0))
    assert bench.samplers == []
    with bench.meter:
        assert bench.samplers[-1].is_running
        measure(bench, 1.0)
        assert bench.samplers[-1].is_running
    assert [s.is_running for s in bench.samplers] == [False]
    assert bench.sensor.closed == 0


def test_the_meter_forgets_samples_no_window_needs() -> None:
    """A server that meters for days does not keep days of samples."""
    bench = fake.Bench(constant(r1=1.0))
    with bench.meter:
        bench.run(60.0)
        for _ in range(20):
            measure(bench, 10.0)
        assert len(bench.meter._log) < 200


def test_power_now_for_the_governor() -> None:
    """The newest total is known while sampling, and is None with a reason before, when stale, and after the end."""
    bench = fake.Bench(lambda ns: {"r1": 7_000.0 + ns / S}, dies_at_ns=3 * S)
    assert (bench.meter.latest_total_mw(), bench.meter.latest_note) == (None, "nothing was sampled yet")
    with bench.meter:
        bench.run(2.0)
        assert bench.meter.latest_total_mw() == pytest.approx(7002.0)
        assert bench.meter.latest_note is None
        bench.clock.advance(S)
        assert bench.meter.latest_total_mw() is None
        assert bench.meter.latest_note == "the last sample is 1.0 s old"
        bench.run(1.0)
        assert bench.meter.latest_total_mw() is None
        assert "the sensor ended" in bench.meter.latest_note


def test_power_now_from_a_counter() -> None:
    """A counter gives the power between its last steps once it has stepped twice."""
    bench = fake.Bench(counting(350.0), rails=(fake.counter_rail(),))
    with bench.meter:
        bench.run(0.05)
        assert bench.meter.latest_total_mw() is None
        assert "has not stepped" in bench.meter.latest_note
        bench.run(1.0)
        assert bench.meter.latest_total_mw() == pytest.approx(350_000.0)


def test_power_trace_of_a_window() -> None:
    """The trace holds one point per sample, and None where a rail of the total was not seen."""
    bench = fake.Bench(lambda ns: {"r1": "EIO (5)" if S < ns < 2 * S else 4_000.0})
    trace = measure(bench, 3.0).power_trace()
    assert trace[5][1] == pytest.approx(4_000.0)
    assert [mw for _, mw in trace].count(None) == 19


def test_the_traces_of_rails_reach_from_end_to_end() -> None:
    """The readings at both ends belong to them, and of two rails with one label neither hides the other."""
    rails = (Rail(id="r1", label="VIN"), Rail(id="r2", label="VIN"), fake.counter_rail("gpu0", "GPU"))
    total = Total(rail_ids=("r1",), scope=Scope.MODULE, evidence="test")
    script = lambda ns: {"r1": 4_000.0, "r2": "EIO (5)", "gpu0": 5_000.0 * (ns // (100 * MS)) / 10}  # noqa: E731
    bench = fake.Bench(script, rails=rails, total=total)
    bench.run(1.0)
    window = measure(bench, 2.0)
    traces = window.rail_traces()
    assert (traces[0][0], traces[-1][0]) == (window.start_ns, window.end_ns)
    assert all(set(rails) == {"VIN (r1)", "VIN (r2)", "GPU"} for _, rails in traces)
    middle = traces[len(traces) // 2][1]
    assert (middle["VIN (r1)"], middle["VIN (r2)"]) == (4_000.0, None)
    assert middle["GPU"] == pytest.approx(5_000.0)


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


def test_own_cost_is_measured() -> None:
    """The meter reports the time its reads take, as a mean, a worst case and a share of the period."""
    bench = fake.Bench(constant(r1=1.0))
    assert bench.meter.overhead() is None
    costs = iter([2, 4] * 100)

    def slow(_: int) -> dict[str, float]:
        bench.clock.advance(next(costs) * MS)
        return {"r1": 1.0}

    bench.sensor.script = slow
    for _ in range(10):
        assert bench.meter.sample()
    overhead = bench.meter.overhead()
    assert (overhead.samples, overhead.ns_per_sample, overhead.worst_ns) == (10, 3 * MS, 4 * MS)
    assert overhead.share == pytest.approx(0.06)


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


def test_reading_as_json() -> None:
    """Every field of a reading reaches the JSON, with the rails joined under ``rail``."""
    window = measure(fake.Bench(constant(**AGX_MW), rails=AGX_RAILS, total=AGX_TOTAL), 3.0)
    plain = json.loads(json.dumps(window.reading.to_json()))
    assert {field.name for field in fields(EnergyReading)} <= plain.keys()
    assert plain["rail"] == "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert (plain["scope"], plain["method"], plain["is_total"]) == ("module_computed", "integrated_power", True)


def test_deadlines_stay_on_the_grid() -> None:
    """Being late skips the missed moments instead of bunching calls up."""
    assert [next_deadline_ns(100, now, 50) for now in (90, 100, 149, 150, 260)] == [150, 150, 150, 200, 300]


def test_sampling_thread_calls_until_it_is_stopped() -> None:
    """The real thread samples at its period, ends when told to, and ends by itself when there is nothing left."""
    five = threading.Event()
    calls: list[int] = []

    def sample() -> bool:
        calls.append(1)
        if len(calls) >= 5:
            five.set()
        return True

    thread = SamplingThread(sample, MS)
    thread.start()
    assert five.wait(10.0)
    thread.stop()
    assert len(calls) >= 5
    assert not thread._thread.is_alive()
    done = threading.Event()

    def last() -> bool:
        done.set()
        return False

    once = SamplingThread(last, MS)
    once.start()
    assert done.wait(10.0)
    once.stop()


class RealClock(fake.FakeClock):  # type: ignore[misc]
    """The real monotonic clock."""

    def __call__(self) -> int:
        """Return the time now."""
        return time.monotonic_ns()


class LiveSensor(fake.FakeSensor):  # type: ignore[misc]
    """A sensor in real time that tells when it was read often enough."""

    enough = threading.Event()

    def read(self) -> Sample:
        """Return the script's values, stamped by the real clock."""
        if self.reads > 10:
            self.enough.set()
        return super().read()


def test_window_with_the_real_thread() -> None:
    """With its own thread and clock the meter samples in the background and stops at the end of the window."""
    total = Total(rail_ids=("r1",), scope=Scope.MODULE, evidence="test")
    sensor = LiveSensor(RealClock(), constant(r1=10_000.0), total=total, period_ms=1.0)
    meter = Meter(sensor)
    with meter.window("work") as window:
        assert sensor.enough.wait(10.0)
    assert meter._sampler is None
    assert window.reading.watts == pytest.approx(10.0)
    assert meter.overhead().samples >= 10
