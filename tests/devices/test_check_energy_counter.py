"""The script that compares a GPU's energy counter with its integrated power, run on a scripted GPU."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.meter import Meter

HERE = Path(__file__)
fake = SimpleNamespace(**runpy.run_path(str(HERE.with_name("fake_meter.py"))))
SCRIPT = HERE.parents[2] / "scripts" / "check_energy_counter.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The script as a module, not run."""
    module = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "check_energy_counter", module)
    found = runpy.run_path(str(SCRIPT), run_name="check_energy_counter")
    module.__dict__.update(found)
    return module


def meters(counter_w: float, power_w: float) -> tuple[object, Meter, Meter]:
    """Return a bench and two meters on its clock: a counter that steps every 100 ms, and power."""
    bench = fake.Bench(
        lambda ns: {"gpu0": (ns + 41_000_000) // 100_000_000 * counter_w * 100}, rails=(fake.counter_rail(),)
    )
    power = fake.FakeSensor(bench.clock, lambda _: {"r1": power_w * 1000}, total=None)
    return bench, bench.meter, Meter(power, clock=bench.clock, sampler=bench.sampler, cost_clock=bench.clock)


@pytest.mark.parametrize(("counter_w", "power_w"), [(500.0, 495.0), (37.0, 65.0)])
def test_table_and_json_show_both_sources(script: SimpleNamespace, counter_w: float, power_w: float) -> None:
    """Each segment has joules and watts of both sources, their difference, samples, coverage and the meter's cost."""
    bench, counter, power = meters(counter_w, power_w)
    work = [script.Segment("idle", lambda: bench.run(5)), script.Segment("load", lambda: bench.run(10))]
    checks = script.run(counter, power, work)
    costs = {"counter": counter.overhead(), "power": power.overhead()}
    about = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "date": "2026-01-01", "power_metric": "power"}
    report = json.loads(json.dumps(script.as_json(about, checks, costs)))
    load = report["segments"]["load"]
    assert load["counter"]["joules"] == pytest.approx(10 * counter_w)
    assert load["power"]["joules"] == pytest.approx(10 * power_w)
    assert load["difference_percent"] == pytest.approx(100 * (counter_w / power_w - 1))
    table = script.as_table(report)
    assert f"| load | 10.00 | {10 * counter_w:.1f} | {counter_w:.2f} | {10 * power_w:.1f} | {power_w:.2f} |" in table
    assert ("one of them is wrong" in table) is (counter_w < 100)
    assert "reading the counter" in table


def test_a_source_that_failed_is_a_dash(script: SimpleNamespace) -> None:
    """What was not measured is shown as a dash and its reason, never as zero."""
    bench, counter, power = meters(100.0, 100.0)
    power.sensor.script = lambda _: {"r1": "code 3 (not supported)"}
    checks = script.run(counter, power, [script.Segment("load", lambda: bench.run(5))])
    costs = {"counter": None, "power": None}
    about = dict.fromkeys(("gpu", "driver", "torch", "date", "power_metric"), "x")
    table = script.as_table(script.as_json(about, checks, costs))
    assert "| load | 5.00 | 500.0 | 100.00 | - | - | - |" in table
    assert "code 3 (not supported)" in table


def test_without_a_gpu_it_says_what_is_missing(
    script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without CUDA, or without torch, the script ends with one sentence and an exit code."""
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert script.main([]) == 1
    assert "torch sees no CUDA device" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert script.main([]) == 5
    assert "edgeprec[torch]" in capsys.readouterr().err


def test_pci_id_is_written_as_nvml_does(script: SimpleNamespace) -> None:
    """The first CUDA device is found in NVML by its PCI id; a torch that does not tell it leaves the environment."""
    found = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3D, pci_device_id=0)
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: found))
    assert script.torch_pci_ids(torch) == ["00000000:3d:00.0"]
    del found.pci_bus_id
    assert script.torch_pci_ids(torch) is None
