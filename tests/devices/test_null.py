"""A machine without a sensor: every number is None with the reason."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

from edgeprec.devices.meter import Meter
from edgeprec.devices.null import NullSensor

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
REASON = "no INA3221/INA238 under /sys/bus/i2c/devices, no NVML, energy_uj is readable by root only"


def test_everything_is_none_with_the_reason() -> None:
    """Joules, phases, power of the moment and idle baseline are None and say why; nothing is 0 and no thread starts."""
    bench = fake.Bench(lambda _: {})
    meter = Meter(NullSensor(REASON, clock=bench.clock), clock=bench.clock, sampler=bench.sampler, wait=bench.run)
    with meter.window("work") as window:
        window.mark("prefill")
        bench.run(5.0)
    assert (window.reading, window.note) == (None, REASON)
    assert (window.by_phase, window.phase_notes) == ({"prefill": None}, {"prefill": REASON})
    assert window.by_rail == {}
    assert (meter.latest_total_mw(), meter.latest_note) == (None, REASON)
    idle = meter.measure_idle(10.0)
    assert (idle.watts, idle.note) == (None, REASON)
    assert bench.samplers == []
    assert meter.overhead() is None


def test_reading_and_closing_are_harmless() -> None:
    """The null sensor may be read and closed like any other."""
    sensor = NullSensor(REASON)
    assert sensor.read().values == {}
    sensor.close()
    sensor.close()
    assert (sensor.source, sensor.total, sensor.total_note) == ("none", None, REASON)
