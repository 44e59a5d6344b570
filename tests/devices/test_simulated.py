"""Simulated boards: what app authors get is read by the real sensor and says that it is simulated."""

from __future__ import annotations

import errno
import gc
import math
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgeprec.devices import simulated
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Scope, Sensor
from edgeprec.devices.simulated import SIMULATED_BOARDS, SimulatedBoard
from edgeprec.devices.thermal import Thermal
from edgeprec.errors import ConfigError, DeviceError

S = 1_000_000_000
TOTALS = {
    "nano": (("POM_5V_IN",), Scope.MODULE),
    "tx2": (("VDD_IN",), Scope.MODULE),
    "xavier-nx": (("VDD_IN",), Scope.MODULE),
    "agx-xavier": (("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), Scope.MODULE_COMPUTED),
    "orin-nano": (("VDD_IN",), Scope.MODULE),
    "orin-nx": (("VDD_IN",), Scope.MODULE),
    "agx-orin": (("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), Scope.MODULE_COMPUTED),
    "thor": (("VIN",), Scope.BOARD_INPUT),
}


class Clock:
    """Nanoseconds that stand still until told."""

    def __init__(self) -> None:
        self.now_ns = 5 * S

    def __call__(self) -> int:
        return self.now_ns


def by_label(sensor: Sensor) -> dict[str, float | None]:
    """Return the power of all rails in mW, by label."""
    values = sensor.read().values
    return {rail.label: values[rail.id] for rail in sensor.rails}


@pytest.mark.parametrize("name", SIMULATED_BOARDS)
def test_every_generation_has_its_total(name: str) -> None:
    """Each board has the rails, total and scope of the real one, and its source says that it is simulated."""
    labels, scope = TOTALS[name]
    with simulated(name) as board:
        sensor = board.sensor()
        assert sensor.source == f"simulated:{name}"
        assert "simulated" in sensor.total_note
        assert sensor.total is not None
        assert sensor.total.scope is scope
        assert tuple(rail.label for rail in sensor.rails if rail.id in sensor.total.rail_ids) == labels
        assert all(value is not None for value in by_label(sensor).values())


@pytest.mark.parametrize("name", SIMULATED_BOARDS)
def test_power_is_shown_to_the_chips_step(name: str) -> None:
    """A rail shows the power it is given, rounded to one step of the chip or one mA, and no other rail moves."""
    with simulated(name) as board:
        sensor = board.sensor()
        before = by_label(sensor)
        for rail in sensor.rails:
            for mw in (0.0, 1234.5, 20_000.0, -392.0):
                board.set_power(rail.label, mw)
                shown = by_label(sensor)
                step = rail.step if rail.step is not None else 20.0
                assert shown[rail.label] == pytest.approx(mw, abs=step / 2 + 20)
                assert {k: v for k, v in shown.items() if k != rail.label} == {
                    k: v for k, v in before.items() if k != rail.label
                }
                assert board.power_mw(rail.label) == mw
            before = by_label(sensor)


def test_a_plain_sensor_reads_the_same_folder() -> None:
    """The folder is a board for any reader: the sensor for real boards sees what was scripted."""
    with simulated("tx2") as board:
        board.set_power("VDD_IN", 7000)
        sensor = Ina3221Sensor.open(board.root)
        assert by_label(sensor)["VDD_IN"] == 7000
        assert sensor.source == "ina3221"


def test_a_profile_scripts_power_over_time() -> None:
    """A profile is asked for the power of each moment; rails that it leaves out keep theirs."""
    clock = Clock()

    def profile(seconds: float) -> Mapping[str, float]:
        return {"VDD_GPU_SOC": 10_000 + 1000 * seconds}

    with simulated("agx-orin", profile=profile, clock=clock) as board:
        sensor = board.sensor()
        for seconds in (0, 1, 2.5, 10):
            clock.now_ns = round((5 + seconds) * S)
            shown = by_label(sensor)
            assert shown["VDD_GPU_SOC"] == pytest.approx(10_000 + 1000 * seconds, abs=121)
            assert shown["VDD_CPU_CV"] == pytest.approx(480.32)
            assert sensor.read().time_ns == clock.now_ns


def test_the_rails_lag_exponentially() -> None:
    """With a lag of 0.3 s a step of power is seen to 63 % after 0.3 s and to 95 % after 0.9 s."""
    clock = Clock()
    with simulated("thor", lag_ms=300, clock=clock) as board:
        board.set_power("VIN", 100_000)
        start_mw = 15_004.0
        sensor = board.sensor()
        assert sensor.lag_ms == pytest.approx(300)
        for tick in range(1, 19):
            clock.now_ns += S // 20
            shown = by_label(sensor)["VIN"]
            assert shown == pytest.approx(100_000 - (100_000 - start_mw) * math.exp(-tick / 6), rel=1e-3)


def test_a_metered_curve_integrates_to_its_energy() -> None:
    """A sine of power over a simulated board, read at 20 Hz, gives its analytic energy to 1 %."""
    clock = Clock()

    def profile(seconds: float) -> Mapping[str, float]:
        return {"VDD_IN": 9000 + 4000 * math.sin(2 * math.pi * seconds / 4)}

    samplers: list[object] = []

    class Ticker:
        def __init__(self, sample: object, period_ns: int) -> None:
            self.sample = sample
            samplers.append(self)

        def start(self) -> None:
            pass

        def stop(self) -> None:
            pass

    with simulated("orin-nx", profile=profile, clock=clock) as board:
        meter = Meter(board.sensor(), clock=clock, sampler=Ticker, cost_clock=clock)
        with meter.window("decode") as window:
            for _ in range(200):
                clock.now_ns += S // 20
                samplers[0].sample()  # type: ignore[attr-defined]
    expected = 90 + 4 * 4 / (2 * math.pi) * (1 - math.cos(2 * math.pi * 10 / 4))
    assert window.reading is not None
    assert window.reading.joules == pytest.approx(expected, rel=0.01)
    assert (window.reading.source, window.reading.is_total) == ("simulated:orin-nx", True)


@pytest.mark.parametrize("name", ["nano", "orin-nx", "thor"])
def test_rails_break_and_mend(name: str) -> None:
    """A broken rail is None with the errno's name, the others go on, and a mended one is back."""
    with simulated(name) as board:
        sensor = board.sensor()
        for rail in sensor.rails:
            board.break_rail(rail.label, errno.ETIMEDOUT)
            board.set_power(rail.label, 1000)
            sample = sensor.read()
            assert {key for key, value in sample.values.items() if value is None} == {rail.id}
            assert "ETIMEDOUT" in sample.reasons[rail.id]
            board.mend_rail(rail.label)
            assert sensor.read().reasons == {}


def test_scripting_and_reading_in_two_threads() -> None:
    """A meter's thread reads while the test scripts: no read fails, and closing in between ends it cleanly."""
    failures: list[BaseException] = []
    with simulated("tx2") as board:
        sensor = board.sensor()

        def read() -> None:
            try:
                while True:
                    assert sensor.read().reasons == {} or not board.is_open
            except DeviceError:
                return
            except BaseException as error:  # noqa: BLE001 - the assertion is on it
                failures.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        for step in range(100):
            board.set_power("VDD_IN", 5000 + step)
        assert by_label(sensor)["VDD_IN"] == 5099
    thread.join(10)
    assert not thread.is_alive()
    assert failures == []


def test_closing_the_board_ends_its_sensors() -> None:
    """A sensor whose board was closed ends with an error, as a sensor does that is unplugged."""
    board = simulated("orin-nano")
    sensor = board.sensor()
    sensor.read()
    sensor.close()
    sensor.read()
    board.close()
    board.close()
    assert not board.root.exists()
    with pytest.raises(DeviceError, match="was closed"):
        sensor.read()


def test_a_forgotten_board_leaves_no_folder() -> None:
    """A board that is never closed removes its temporary folder when it is forgotten."""
    root = simulated("nano").root
    gc.collect()
    assert not root.exists()


def test_a_directory_of_ones_own_stays(tmp_path: Path) -> None:
    """A board built into a given folder leaves it there, and never builds over what is in it."""
    with simulated("orin-nano", directory=tmp_path / "board") as board:
        assert board.root == tmp_path / "board"
    assert Ina3221Sensor.open(tmp_path / "board").total is not None
    with pytest.raises(ConfigError, match="is not empty"):
        simulated("orin-nano", directory=tmp_path / "board")


def test_unknown_boards_and_rails_are_named() -> None:
    """A name that does not exist is answered with the names that do."""
    with pytest.raises(ConfigError, match="choose one of nano, tx2"):
        simulated("orin-max")
    with simulated("nano") as board:
        for call in (board.power_mw, board.mend_rail):
            with pytest.raises(ConfigError, match="it has POM_5V_IN, POM_5V_GPU, POM_5V_CPU"):
                call("VDD_IN")
        with pytest.raises(ConfigError):
            board.set_power("VDD_IN", 1)
        with pytest.raises(ConfigError):
            board.break_rail("VDD_IN", 5)


def test_temperatures_and_power_modes_can_be_set() -> None:
    """The other files of the board can be scripted as well."""
    with simulated("agx-orin") as board:
        assert isinstance(board, SimulatedBoard)
        board.set_temperature(8, 97.5)
        board.set_power_mode(3)
        assert Thermal(board.sysfs).read(0).hottest_c == 97.5
        assert board.sysfs.text("var/lib/nvpmodel/status").value == "pmode:0003"
        assert "VDD_GPU_SOC" in board.labels
