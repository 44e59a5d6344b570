"""Sampling: when it runs, what it keeps and costs, power now, and the real thread."""

from __future__ import annotations

import runpy
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.meter import Meter
from edgeprec.devices.meter_thread import SamplingThread, next_deadline_ns
from edgeprec.devices.sensor import Sample, Scope, Total

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
measure, constant, counting = fake.measure, fake.constant, fake.counting
S, MS = fake.S, fake.MS


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
