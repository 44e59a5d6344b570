"""Traces: what is written is read back, a replay behaves as the sensor did, and damage is named."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.meter import Meter
from edgeprec.devices.null import NullSensor
from edgeprec.devices.recording import RecordingSensor, TraceWriter, record
from edgeprec.devices.replay import ReplaySensor, SteppedReplaySensor, load_trace
from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Total
from edgeprec.errors import DeviceError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
S, MS = fake.S, fake.MS
TRACES = Path(__file__).with_name("traces")
RAILS = (
    Rail(id="1-0040:1", label="VDD_IN", step=40.0, note="module"),
    Rail(id="gpu0", label="GPU", quantity=Quantity.ENERGY, step_ms=100.0, parent="1-0040:1"),
)
TOTAL = Total(rail_ids=("1-0040:1",), scope=Scope.MODULE, evidence="VDD_IN feeds all", is_assumed=True)


def power_mw(ns: int) -> float:
    """Return a power that rises and falls."""
    return 8000 + 3000 * math.sin(ns / S)


def recorded(path: Path, *, seconds: float = 10.0, **options: object) -> object:
    """Record a scripted sensor and return its bench."""
    bench = fake.Bench(
        lambda ns: {"1-0040:1": power_mw(ns), "gpu0": float(ns // (100 * MS))}, rails=RAILS, total=TOTAL, **options
    )
    count = record(
        bench.sensor, path, seconds=seconds, clock=bench.clock, wait=lambda s: bench.clock.advance(round(s * S))
    )
    assert count == len(path.read_text().splitlines()) - 1
    return bench


def test_a_recording_reads_as_the_sensor_did(tmp_path: Path) -> None:
    """Rails, units, parents, total, period and lag survive the file, and so does every sample."""
    path = tmp_path / "trace.jsonl"
    bench = recorded(path, lag_ms=7.0)
    replay = SteppedReplaySensor.open(path)
    assert (replay.rails, replay.total) == (RAILS, TOTAL)
    assert (replay.period_ms, replay.lag_ms, replay.source, replay.recorded_source) == (50.0, 7.0, "replay", "fake")
    assert replay.seconds == pytest.approx(10.0)
    first = replay.read()
    assert first.time_ns == 0
    assert first.values["1-0040:1"] == pytest.approx(power_mw(bench.clock.start_ns - bench.clock.start_ns))


def test_reasons_and_restarts_survive(tmp_path: Path) -> None:
    """A failed read stays None with its reason, a restart of a counter stays one."""
    path = tmp_path / "trace.jsonl"
    sample = Sample(time_ns=5, values={"gpu0": None}, reasons={"gpu0": "EIO"}, restarts=frozenset({"gpu0"}))
    with TraceWriter(path, NullSensor("none")) as writer:
        writer.write(sample)
    _, samples = load_trace(path)
    assert samples == [Sample(time_ns=0, values={"gpu0": None}, reasons={"gpu0": "EIO"}, restarts=frozenset({"gpu0"}))]


def test_stepped_replay_is_metered_to_the_recorded_energy(tmp_path: Path) -> None:
    """A meter on a stepped replay integrates the recorded curve, on the recording's own clock, without waiting."""
    path = tmp_path / "trace.jsonl"
    recorded(path)
    replay = SteppedReplaySensor.open(path)
    meter = Meter(replay, clock=replay.clock, sampler=fake.ManualSampler)
    with meter.window("all") as window:
        while replay.clock() < 9.9 * S:
            meter.sample()
    seconds = (window.end_ns - window.start_ns) / S
    truth = 8 * seconds + 3 * (1 - math.cos(seconds))
    assert window.reading.joules == pytest.approx(truth, rel=0.001)


def test_replay_keeps_the_pace_of_the_recording(tmp_path: Path) -> None:
    """In real time a read gives the newest sample due, on the live clock; the first read starts the trace."""
    path = tmp_path / "trace.jsonl"
    recorded(path)
    clock = fake.FakeClock()
    replay = ReplaySensor.open(path, clock=clock)
    clock.advance(3600 * S)
    start_ns = clock()
    assert replay.read().time_ns == start_ns
    clock.advance(20 * MS)
    assert replay.read().time_ns == start_ns, "a sample was made up between two recorded ones"
    clock.advance(2 * S)
    sample = replay.read()
    assert sample.time_ns == start_ns + 2 * S
    assert sample.values["1-0040:1"] == pytest.approx(power_mw(2 * S))


def test_end_of_the_trace_ends_the_series(tmp_path: Path) -> None:
    """A window that outlasts the trace keeps the joules up to its end and says that it ended."""
    path = tmp_path / "trace.jsonl"
    recorded(path, seconds=3.0)
    clock = fake.FakeClock()
    bench = fake.Bench(lambda _: {}, rails=RAILS)
    replay = ReplaySensor.open(path, clock=clock)
    bench.clock = clock
    bench.meter = Meter(replay, clock=clock, sampler=bench.sampler, cost_clock=clock)
    with bench.meter.window("long") as window:
        bench.run(6.0)
    assert window.reading.coverage == pytest.approx(0.5, abs=0.01)
    assert "the recorded trace ended after 3.0 s" in window.note


def test_pause_in_the_recording_is_a_gap(tmp_path: Path) -> None:
    """Where the recording has no samples the replay has none: coverage falls."""
    path = tmp_path / "trace.jsonl"
    recorded(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:41] + lines[81:]) + "\n")
    clock = fake.FakeClock()
    bench = fake.Bench(lambda _: {}, rails=RAILS)
    bench.clock = clock
    bench.meter = Meter(ReplaySensor.open(path, clock=clock), clock=clock, sampler=bench.sampler, cost_clock=clock)
    with bench.meter.window("holed") as window:
        bench.run(9.0)
    assert window.reading.coverage == pytest.approx(1 - 2.05 / 9, abs=0.001)
    assert "1 gap in VDD_IN" in window.note


def test_a_restart_between_two_reads_is_not_missed(tmp_path: Path) -> None:
    """A sample that is skipped because reads are slow hands its restart on to the next one."""
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, NullSensor("none")) as writer:
        for i in range(10):
            writer.write(Sample(time_ns=i * S, values={"r": 1.0}, restarts=frozenset({"r"} if i == 3 else ())))
    clock = fake.FakeClock()
    replay = ReplaySensor.open(path, clock=clock)
    assert replay.read().restarts == frozenset()
    clock.advance(5 * S)
    assert replay.read().restarts == frozenset({"r"})
    clock.advance(S)
    assert replay.read().restarts == frozenset()


def test_recording_sensor_passes_on_and_writes_down(tmp_path: Path) -> None:
    """Wrapped around a sensor it changes nothing, and what the meter saw is in the file."""
    path = tmp_path / "trace.jsonl"
    bench = fake.Bench(lambda ns: {"r1": 5000.0})
    wrapped = RecordingSensor(bench.sensor, path)
    for name in ("source", "rails", "total", "total_note", "period_ms", "lag_ms"):
        assert getattr(wrapped, name) == getattr(bench.sensor, name)
    meter = Meter(wrapped, clock=bench.clock, sampler=bench.sampler, cost_clock=bench.clock)
    with meter.window("work") as window:
        bench.run(1.0)
    wrapped.close()
    wrapped.close()
    assert window.reading.joules == pytest.approx(5.0)
    assert len(load_trace(path)[1]) == 22
    assert bench.sensor.closed >= 1


def test_recording_ends_with_the_sensor(tmp_path: Path) -> None:
    """A sensor that dies ends the trace with what it gave; one that never answered is an error."""
    bench = recorded(tmp_path / "short.jsonl", dies_at_ns=2 * S)
    assert len(load_trace(tmp_path / "short.jsonl")[1]) == 40
    with pytest.raises(DeviceError, match="bus went away"):
        record(bench.sensor, tmp_path / "none.jsonl", seconds=1, clock=bench.clock, wait=lambda _: None)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """A trace is never written over another, nor into a folder that is not there."""
    path = tmp_path / "trace.jsonl"
    path.write_text("precious")
    with pytest.raises(DeviceError, match="choose another name"):
        TraceWriter(path, NullSensor("none"))
    assert path.read_text() == "precious"
    with pytest.raises(DeviceError, match="cannot be created"):
        TraceWriter(tmp_path / "no" / "where", NullSensor("none"))


GOOD = '{"time_ns": 0, "values": {"1-0040:1": 1.0}}'


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header: ["{}", GOOD], "line 1 has the format None"),
        (lambda header: [json.dumps({**header, "version": 99}), GOOD], "version 99, this release reads 1"),
        (lambda header: [json.dumps({**header, "rails": [{}]}), GOOD], "line 1 of the trace is damaged"),
        (lambda header: [json.dumps({**header, "period_ms": "fast"}), GOOD], "line 1 of the trace is damaged"),
        (lambda header: [json.dumps(header)], "holds no sample"),
        (lambda header: [json.dumps(header), "{broken", GOOD], "line 2 of the trace is not JSON"),
        (lambda header: [json.dumps(header), "[1, 2]", GOOD], "line 2 of the trace is not a JSON object"),
        (lambda header: [json.dumps(header), '{"time_ns": 1}', GOOD], "line 2 of the trace is no sample"),
        (lambda header: [json.dumps(header), '{"time_ns": 5, "values": {}}', GOOD], "earlier than the line before"),
        (lambda header: ["plain text"], "no line has a power rail"),
        (lambda header: [""], "no line has a power rail"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, change: object, says: str) -> None:
    """A trace that cannot be trusted is refused with the place and the reason."""
    path = tmp_path / "trace.jsonl"
    recorded(path, seconds=0.1)
    header = json.loads(path.read_text().splitlines()[0])
    path.write_text("\n".join(change(header)) + "\n")
    with pytest.raises(DeviceError, match=says) as caught:
        ReplaySensor.open(path)
    assert str(path) in str(caught.value)


def test_a_line_cut_off_at_the_end_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recording whose process was killed loses its last line only, and says so."""
    path = tmp_path / "trace.jsonl"
    recorded(path, seconds=1.0)
    whole = load_trace(path)[1]
    path.write_text(path.read_text()[:-20])
    assert load_trace(path)[1] == whole[:-1]
    assert "is cut off" in caplog.text


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    """A file that is not there is one sentence."""
    with pytest.raises(DeviceError, match=r"trace .*none\.jsonl cannot be read"):
        ReplaySensor.open(tmp_path / "none.jsonl")


def test_tegrastats_log_replays_as_a_sensor(tmp_path: Path) -> None:
    """A log of a TX2 gives VDD_IN as total, its rails as children, and the joules of its lines."""
    path = tmp_path / "tegrastats.log"
    path.write_text("VDD_SYS_GPU 182/182 VDD_IN 5297/5297 VDD_SYS_CPU 1917/1917\n" * 11)
    replay = SteppedReplaySensor.open(path)
    meter = Meter(replay, clock=replay.clock, sampler=fake.ManualSampler)
    with meter.window("all") as window:
        for _ in range(8):
            meter.sample()
    assert window.reading.joules == pytest.approx(8 * 5.297)
    assert (window.reading.scope, window.reading.source) == (Scope.MODULE, "replay")


def test_tegrastats_log_takes_a_board_plan(tmp_path: Path) -> None:
    """Where the caller knows the board, its plan decides the total."""
    path = tmp_path / "tegrastats.log"
    path.write_text("GPU_RAIL 3150mW/1mW CPU_RAIL 14312mW/1mW IO_RAIL 4968mW/1mW MEMORY_RAIL 1091mW/1mW\n")
    assert ReplaySensor.open(path).total is None
    assert "no total known" in ReplaySensor.open(path).total_note
    wanted = ("GPU_RAIL", "CPU_RAIL", "IO_RAIL")

    def plan(labels: list[str]) -> Total:
        assert set(wanted) <= set(labels)
        return Total(rail_ids=wanted, scope=Scope.MODULE_COMPUTED, evidence="our own board")

    assert ReplaySensor.open(path, plan=plan).total.rail_ids == wanted


@pytest.mark.parametrize("polls", [1, 2, 4])
def test_a_real_gpu_by_its_counter_and_by_its_power(polls: int) -> None:
    """Recorded on an H200 from rest into full load: both sources agree to 3 % over 8 s, however often they are read."""
    joules = {}
    for name in ("counter", "power"):
        replay = SteppedReplaySensor.open(TRACES / f"h200-{name}.jsonl")
        meter = Meter(replay, period_ms=50.0 * polls, clock=replay.clock, sampler=fake.ManualSampler)
        with meter.window("load") as window:
            while replay.clock() < 7.8 * S:
                for _ in range(polls - 1):
                    replay.read()
                meter.sample()
        assert window.reading.coverage > 0.98
        joules[name] = window.reading.joules
    assert joules["counter"] == pytest.approx(joules["power"], rel=0.03)
    assert joules["counter"] > 4000
