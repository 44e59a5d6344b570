"""The parts of a window: its phases, windows inside and beside it, and the traces of its power."""

from __future__ import annotations

import runpy
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.sensor import Rail, Scope, Total

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
measure, constant = fake.measure, fake.constant
S, MS = fake.S, fake.MS


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
