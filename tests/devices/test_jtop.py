"""jtop: its figures in every shape, every way it refuses, and a service that gets stuck or goes away."""

from __future__ import annotations

import logging
import runpy
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeprec.devices.jtop import JtopSensor
from edgeprec.devices.jtop_power import read_power
from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Scope, Total
from edgeprec.errors import DeviceError

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))


class JtopException(Exception):
    """The package's own error."""


class FakeClient:
    """Stands in for jtop's client: ``power`` is a value, a function or an error."""

    def __init__(self, power: object = None, *, start: object = None, interval: float | None = 1.0) -> None:
        self.script = power
        self.on_start = start
        self.is_alive = True
        self.closed = 0
        if interval is not None:
            self.interval = interval

    def start(self) -> None:
        """Connect, fail or hang as told."""
        if isinstance(self.on_start, BaseException):
            raise self.on_start
        if callable(self.on_start):
            self.on_start()

    def ok(self, spin: bool = False) -> bool:
        """Return whether the service still talks; without ``spin`` the real one would wait."""
        assert spin, "the sampling thread must not wait for jtop's next tick"
        return self.is_alive

    @property
    def power(self) -> object:
        """Return the figures."""
        found = self.script() if callable(self.script) else self.script
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Count the calls, and fail as the real one may."""
        self.closed += 1
        raise OSError("already closed")


def module_of(client: FakeClient, *, error: object = JtopException) -> SimpleNamespace:
    """Return a module jtop that hands out this client."""
    module = SimpleNamespace(jtop=lambda interval: client)
    if error is not None:
        module.JtopException = error
    return module


def opened(client: FakeClient, tmp_path: Path, **options: object) -> JtopSensor:
    """Open the sensor over a fake client."""
    return JtopSensor.open(module=module_of(client), socket=tmp_path / "jtop.sock", **options)


def rail(mw: float, **more: object) -> dict[str, object]:
    """Return a rail as releases from 4.2 give it."""
    return {"volt": 5000, "curr": 100, "power": mw, "avg": 1, "online": True, "type": "INA3221", **more}


NANO_OLD = ({"cur": 2000, "avg": 1900}, {"POM_5V_GPU": {"cur": 100, "avg": 90}, "POM_5V_CPU": {"cur": 400, "avg": 90}})
ORIN_NX = {"rail": {"VDD_CPU_GPU_CV": rail(600), "VDD_SOC": rail(1500)}, "tot": {**rail(4784), "name": "VDD_IN"}}
AGX_ORIN = {
    "rail": {
        "VDD_GPU_SOC": rail(3362),
        "VDD_CPU_CV": rail(480),
        "VIN_SYS_5V0": rail(4868),
        "VDDQ_VDD2_1V8AO": rail(397),
    },
    "tot": {"power": 9107, "avg": 9000},
}
BARE = {
    "rail": {"GPU": {"volt": 19000, "curr": 10, "power": 190, "avg": 190, "online": True, "type": "INA3221"}},
    "tot": {"power": 190, "avg": 190},
}
NO_CURRENT = {"rail": {"GPU": {}}, "tot": {"power": 5000, "avg": 4900}}


@pytest.mark.parametrize(
    ("power", "total_mw", "rails"),
    [
        (NANO_OLD, 2000, {"POM_5V_GPU": 100, "POM_5V_CPU": 400}),
        (ORIN_NX, 4784, {"VDD_CPU_GPU_CV": 600, "VDD_SOC": 1500}),
        (AGX_ORIN, 9107, {"VDD_GPU_SOC": 3362, "VDD_CPU_CV": 480, "VIN_SYS_5V0": 4868, "VDDQ_VDD2_1V8AO": 397}),
        (BARE, 190, {"GPU": 190}),
        (NO_CURRENT, 5000, {"GPU": None}),
    ],
)
def test_every_shape_of_the_figures(tmp_path: Path, power: object, total_mw: float, rails: dict[str, float]) -> None:
    """Tuples to 4.1, mappings since 4.2, a total that is a rail or a sum, keys missing: the same rails in mW."""
    sensor = opened(FakeClient(power), tmp_path)
    sample = sensor.read()
    assert sensor.total.scope is Scope.JTOP_SUM
    assert sum(sample.values[rail_id] for rail_id in sensor.total.rail_ids) == total_mw
    assert {name: sample.values[name] for name in rails} == rails
    assert all((value is None) == (rail_id in sample.reasons) for rail_id, value in sample.values.items())


def test_the_running_average_is_never_passed_on(tmp_path: Path) -> None:
    """jtop's ``avg`` is no mean of energy; only the present figure is used."""
    values = opened(FakeClient(ORIN_NX), tmp_path).read().values
    assert 1 not in values.values()


def test_a_known_board_decides_its_own_total(tmp_path: Path) -> None:
    """jtop's sum counts VDDQ twice on AGX Orin; the board's plan gives 8710 mW of the three rails."""
    seen: list[list[str]] = []

    def plan(names: list[str]) -> Total:
        seen.append(list(names))
        wanted = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
        return Total(rail_ids=wanted, scope=Scope.MODULE_COMPUTED, evidence="AGX Orin")

    sensor = opened(FakeClient(AGX_ORIN), tmp_path, plan=plan)
    sample = sensor.read()
    assert sum(sample.values[rail_id] for rail_id in sensor.total.rail_ids) == 8710
    assert "tot" not in sample.values
    assert seen == [["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]]


def test_a_plan_sees_the_rail_that_became_the_total(tmp_path: Path) -> None:
    """The input rail that jtop moved into the total is a rail again; a plan that knows nothing leaves jtop's own."""
    seen: list[str] = []
    sensor = opened(FakeClient(ORIN_NX), tmp_path, plan=lambda names: seen.extend(names))
    assert "VDD_IN" in seen
    assert (sensor.total.rail_ids, sensor.total.scope) == (("VDD_IN",), Scope.JTOP_SUM)
    assert {rail.id: rail.parent for rail in sensor.rails}["VDD_SOC"] == "VDD_IN"


def test_usb_supplies_are_no_rails(tmp_path: Path) -> None:
    """What a USB-C charger could deliver is not consumption: not a rail, and a sum that holds it is no total."""
    power = {
        "rail": {"VDD_GPU": rail(5000), "ucsi-source-psy-1-00081": rail(65_000, type="SYSTEM")},
        "tot": {"power": 70_000},
    }
    sensor = opened(FakeClient(power), tmp_path)
    assert [r.id for r in sensor.rails] == ["VDD_GPU"]
    assert sensor.total is None
    assert "upgrade jetson-stats" in sensor.total_note


@pytest.mark.parametrize(
    "power", [{}, {"rail": {}, "tot": {}}, ({}, {}), {"rail": {"GPU": rail(1)}, "tot": []}, None, 7, "x"]
)
def test_no_sensor_or_an_unknown_shape_is_unavailable(tmp_path: Path, power: object) -> None:
    """A board without sensors, or a shape of the future, is unavailable with a sentence, never 0 mW or a KeyError."""
    client = FakeClient(power)
    with pytest.raises(DeviceError, match="jtop"):
        opened(client, tmp_path)
    assert client.closed == 1


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (
            JtopException("The jtop.service is not active. Please run:\nsudo systemctl restart jtop.service"),
            "systemctl",
        ),
        (JtopException("I can't access to jtop.service.\nPlease logout or reboot this board."), "id -nG"),
        (PermissionError(13, "Permission denied"), "usermod -aG jtop"),
        (JtopException("Mismatch version jtop service: [4.2.2] and client: [4.1.5]"), "same major.minor"),
        (JtopException("mismatch python version between library and service. Python versions"), "another Python"),
        (JtopException("Authentication mismatch with jetson-stats server"), "same version"),
        (JtopException("Error connection"), "gives no data"),
        (JtopException("Lost connection with jtop server"), "went away"),
        (KeyError("memory"), "'memory' is missing"),
        (ValueError("unsupported pickle protocol: 5"), "pickle protocol"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError"),
        (EOFError(), "EOFError"),
    ],
)
def test_every_refusal_names_its_fix(tmp_path: Path, error: Exception, fix: str) -> None:
    """Whatever the client raises while connecting becomes one sentence with what jtop said and what to do."""
    client = FakeClient(ORIN_NX, start=error)
    with pytest.raises(DeviceError) as caught:
        opened(client, tmp_path)
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
    assert client.closed == 1


def test_versions_of_both_sides_are_named(tmp_path: Path) -> None:
    """Service and package of different versions: one line with both."""
    error = JtopException("Mismatch version jtop service: [4.3.2] and client: [4.2.1]")
    with pytest.raises(DeviceError, match=r"4\.3\.2.*4\.2\.1"):
        opened(FakeClient(start=error), tmp_path)


def test_socket_that_is_a_folder(tmp_path: Path) -> None:
    """Docker makes a folder where the socket was missing: that is said before anything is imported."""
    (tmp_path / "jtop.sock").mkdir()
    with pytest.raises(DeviceError, match="is a directory: the service was down when the container started"):
        JtopSensor.open(socket=tmp_path / "jtop.sock")


def test_stuck_service_is_given_up(tmp_path: Path) -> None:
    """A start that never returns ends at the deadline with a sentence."""
    release = threading.Event()
    with pytest.raises(DeviceError, match=r"did not answer within 0\.05 s"):
        opened(FakeClient(ORIN_NX, start=lambda: release.wait(30)), tmp_path, timeout_s=0.05)
    release.set()


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jetson-stats is optional: without it the sentence has the install line."""
    monkeypatch.setitem(sys.modules, "jtop", None)
    with pytest.raises(DeviceError, match=r"edgeprec\[jetson\]"):
        JtopSensor.open(socket=tmp_path / "jtop.sock")


def test_module_without_its_own_error_type(tmp_path: Path) -> None:
    """A release that moved its exception is still used."""
    module = module_of(FakeClient(ORIN_NX), error=None)
    assert JtopSensor.open(module=module, socket=tmp_path / "jtop.sock").total.rail_ids == ("VDD_IN",)


@pytest.mark.parametrize(("interval", "period_ms"), [(1.0, 1000.0), (0.5, 500.0), (None, 1000.0), (0, 1000.0)])
def test_interval_of_the_service_is_read_back(tmp_path: Path, interval: float | None, period_ms: float) -> None:
    """The first client's interval counts for all, so it is read and not assumed; the figures lag by it."""
    sensor = opened(FakeClient(ORIN_NX, interval=interval), tmp_path)
    assert (sensor.period_ms, sensor.lag_ms) == (period_ms, period_ms)


@pytest.mark.parametrize("fault", ["silent", JtopException("Lost connection with jtop server"), KeyError("power"), {}])
def test_service_that_goes_away_ends_the_series(tmp_path: Path, fault: object) -> None:
    """Silence, a lost connection or figures that vanish end the window with what was measured and a note."""
    clock = fake.FakeClock(0)
    client = FakeClient(ORIN_NX)
    sensor = opened(client, tmp_path, clock=clock)
    meter = Meter(sensor, clock=clock, sampler=fake.ManualSampler, cost_clock=clock)
    with meter.window("work") as window:
        for i in range(10):
            clock.advance(fake.S)
            if i == 5:
                client.is_alive = fault != "silent"
                client.script = fault
            meter.sample()
    assert window.reading.joules == pytest.approx(4.784 * 5.5)
    assert window.reading.coverage == pytest.approx(0.55)
    assert "the sensor ended" in window.note


def test_close_swallows_what_the_client_throws(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leaving twice closes once; an error of the client stays in the debug log."""
    client = FakeClient(ORIN_NX)
    sensor = opened(client, tmp_path)
    with caplog.at_level(logging.DEBUG):
        sensor.close()
        sensor.close()
    assert client.closed == 1
    assert "already closed" in caplog.text


@pytest.mark.parametrize("value", ["5000", None, True, {}])
def test_figures_that_are_no_numbers_are_none(value: object) -> None:
    """A figure of another type is None, never 0 and never an exception."""
    power = read_power({"rail": {"GPU": {"power": value}, "CPU": rail(5)}, "tot": {"power": 5}})
    assert power.rails_mw == {"GPU": None, "CPU": 5.0}
