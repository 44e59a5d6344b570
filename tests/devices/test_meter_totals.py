"""Which rails make a window's total: the declared ones, said where they are partial, shared, assumed or unknown."""

from __future__ import annotations

import json
import runpy
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.sensor import Rail, Scope, Total

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
measure, constant, counting = fake.measure, fake.constant, fake.counting
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


def test_an_assumed_total_says_so() -> None:
    """A total that is only assumed carries its evidence in the note."""
    total = Total(rail_ids=("r1",), scope=Scope.BOARD_INPUT, evidence="VIN is the only input", is_assumed=True)
    note = measure(fake.Bench(constant(r1=1.0), total=total), 1.0).note
    assert note == "the total is assumed: VIN is the only input"


def test_reading_as_json() -> None:
    """Every field of a reading reaches the JSON, with the rails joined under ``rail``."""
    window = measure(fake.Bench(constant(**AGX_MW), rails=AGX_RAILS, total=AGX_TOTAL), 3.0)
    plain = json.loads(json.dumps(window.reading.to_json()))
    assert {field.name for field in fields(EnergyReading)} <= plain.keys()
    assert plain["rail"] == "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert (plain["scope"], plain["method"], plain["is_total"]) == ("module_computed", "integrated_power", True)
