"""Choosing a sensor: the first that knows a total, every refusal kept with its reason, and names meant literally."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeprec.devices import Detection, detect, survey
from edgeprec.devices.board_trees import plant_tree
from edgeprec.devices.detect import SOURCES, Opener
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.null import NullSensor
from edgeprec.devices.recording import record
from edgeprec.devices.sensor import Rail, Sample, Scope, Total
from edgeprec.devices.simulated import SIMULATED_BOARDS, simulated
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import ConfigError, DeviceError

Plant = Callable[[str], TreeBuilder]


class FakeSensor:
    """A sensor with or without a total."""

    period_ms = 50.0
    lag_ms = None

    def __init__(self, source: str, *, has_total: bool) -> None:
        self.source = source
        self.rails = (Rail(id="r", label="R"),)
        self.total = Total(rail_ids=("r",), scope=Scope.GPU, evidence="fake") if has_total else None
        self.total_note = None if has_total else "no total known"
        self.closed = 0

    def read(self) -> Sample:
        """Return one value."""
        return Sample(time_ns=0, values={"r": 1.0})

    def close(self) -> None:
        """Count."""
        self.closed += 1


def refuse(reason: str) -> Opener:
    """Return a way to open a sensor that refuses."""

    def open_sensor() -> FakeSensor:
        raise DeviceError(reason)

    return open_sensor


def test_the_first_source_with_a_total_is_used() -> None:
    """Sources are tried in order, refusals are kept, and nothing after the first good one is touched."""
    good = FakeSensor("nvml", has_total=True)
    ways: dict[str, Opener] = {
        "jetson": refuse("no chip"),
        "jtop": refuse("no service"),
        "nvml": lambda: good,
        "rapl": refuse("must not be tried"),
    }
    found = detect(openers=ways)
    assert found.sensor is good
    assert [(a.source, a.ok, a.reason) for a in found.attempts] == [
        ("jetson", False, "no chip"),
        ("jtop", False, "no service"),
        ("nvml", True, None),
    ]
    assert [bool(attempt.fix) for attempt in found.attempts] == [True, False, False]
    assert found.note is None


def test_rails_without_a_total_give_way_to_a_total() -> None:
    """A source that knows no total is used only when no other knows one; sensors left aside are closed."""
    rails, more = FakeSensor("jetson", has_total=False), FakeSensor("jtop", has_total=False)
    total = FakeSensor("nvml", has_total=True)
    ways: dict[str, Opener] = {"jetson": lambda: rails, "jtop": lambda: more, "nvml": lambda: total}
    assert detect("auto", openers=ways).sensor is total
    assert (rails.closed, more.closed, total.closed) == (1, 1, 0)
    del ways["nvml"]
    found = detect("auto", openers=ways)
    assert found.sensor is rails
    assert (rails.closed, more.closed) == (1, 2)
    assert found.attempts[0].reason == "no total known"


def test_without_any_sensor_the_reasons_stand_in_its_place() -> None:
    """No sensor is a sensor that says why each source refused: null with a reason, never 0."""
    found = detect(openers={source: refuse(f"{source} is not here") for source in SOURCES})
    assert isinstance(found.sensor, NullSensor)
    assert found.sensor.total is None
    for source in SOURCES:
        assert f"{source} is not here" in str(found.note)
    assert len(found.attempts) == len(SOURCES)


@pytest.mark.parametrize("source", SOURCES)
def test_a_sensor_asked_for_by_name_is_used_or_an_error(source: str) -> None:
    """A named sensor is never replaced by another one."""
    ways: dict[str, Opener] = {name: refuse(f"{name} is not here") for name in SOURCES}
    with pytest.raises(DeviceError, match=f"the sensor {source} cannot be used: {source} is not here"):
        detect(source, openers=ways)
    own = FakeSensor(source, has_total=True)
    ways[source] = lambda: own
    found = detect(source, openers=ways)
    assert found.sensor is own
    assert [attempt.source for attempt in found.attempts] == [source]


@pytest.mark.parametrize(
    "name", ["cpu", "simulated", "replay", "simulated:", "nvml:0", "jetson:1", "None", "AUTO", ":"]
)
def test_an_unknown_name_is_a_configuration_error(name: str) -> None:
    """A name that is no source is refused with the list of sources."""
    with pytest.raises(ConfigError, match="choose one of auto, jetson, jtop"):
        detect(name)


def test_none_measures_nothing_on_purpose() -> None:
    """``none`` is a sensor without rails whose note says that this was asked for."""
    found = detect("none")
    assert found.sensor.rails == ()
    assert found.note == "power is not measured: the sensor is set to none"


@pytest.mark.parametrize("board", SIMULATED_BOARDS)
def test_simulated_boards_are_opened_and_removed(board: str) -> None:
    """``simulated:BOARD`` reads a board in a temporary folder, which goes away with the sensor."""
    found = detect(f"simulated:{board}")
    assert found.sensor.source == f"simulated:{board}"
    assert all(value is not None for value in found.sensor.read().values.values())
    assert found.sysfs.text("etc/nv_tegra_release").value is not None
    root = Path(found.sysfs.absolute(""))
    found.sensor.close()
    found.sensor.close()
    assert not root.exists()


def test_an_unknown_simulated_board_is_named() -> None:
    """The boards that exist are listed."""
    with pytest.raises(ConfigError, match="agx-orin, thor"):
        detect("simulated:h200")


def test_a_recorded_trace_is_replayed(tmp_path: Path) -> None:
    """``replay:FILE`` reads a trace of EdgePrec or a log of tegrastats, with the total of the board it came from."""
    path = tmp_path / "trace.jsonl"
    with simulated("orin-nano") as board:
        record(board.sensor(), path, seconds=0, wait=lambda seconds: None)
    found = detect(f"replay:{path}")
    assert found.sensor.source == "replay"
    assert found.sensor.total is not None
    log = tmp_path / "tegrastats.log"
    log.write_text("VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 480mW/480mW VIN_SYS_5V0 4968mW/5048mW\n")
    total = detect(f"replay:{log}").sensor.total
    assert total is not None
    assert (total.rail_ids, total.scope) == (("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), Scope.MODULE_COMPUTED)
    with pytest.raises(DeviceError, match="cannot be read"):
        detect(f"replay:{tmp_path}/none")


@pytest.mark.parametrize(
    ("name", "refused"),
    [("agx-orin-r35", ()), ("orin-nx-r35", ()), ("thor-r38-no-ina238", ()), ("x86-none", ("jetson", "rapl"))],
)
def test_a_root_leads_to_its_own_sensors(name: str, refused: tuple[str, ...], plant: Plant) -> None:
    """Below a root the rails of that machine are found, and refusals name the folders of that machine."""
    root = plant(name).root
    for source in refused:
        with pytest.raises(DeviceError, match=str(root)):
            detect(source, root)
    if not refused:
        found = detect("auto", root)
        assert found.sensor.source == "ina3221"
        assert found.sysfs.absolute("") == f"{root}/"


def test_a_socket_that_is_a_folder_is_explained(plant: Plant) -> None:
    """jetson_stats#417: the container found a folder in the socket's place; the board's own rails are used."""
    root = plant("container-orin").root
    with pytest.raises(DeviceError, match=r"jtop\.sock is a directory: the service was down when the container"):
        detect("jtop", root)
    found = detect("jetson", root)
    assert found.sensor.total is not None
    assert found.sensor.total.is_assumed


def test_rails_that_all_refuse_give_way_to_jtop(plant: Plant) -> None:
    """JetPack 4 may lock its files: the next source is tried, and the reason has path and command."""
    tree = plant("nano-r32")
    for index in range(3):
        tree.fail(f"sys/bus/i2c/devices/6-0040/iio:device0/in_power{index}_input", "EACCES")
    jtop = FakeSensor("jtop", has_total=True)
    ways: dict[str, Opener] = {
        "jetson": lambda: Ina3221Sensor.open(tree.root, reader=tree.read),
        "jtop": lambda: jtop,
    }
    found = detect("auto", openers=ways)
    assert found.sensor is jtop
    reason = str(found.attempts[0].reason)
    assert reason.startswith("none of its rails can be read: EACCES")
    assert f"sudo chmod a+r {tree.root}" in reason
    with pytest.raises(DeviceError, match="the sensor jetson cannot be used: none of its rails"):
        detect("jetson", openers=ways)


def test_one_readable_rail_keeps_the_board(plant: Plant) -> None:
    """As long as one rail can be read, the board's own rails are the sensor."""
    tree = plant("nano-r32")
    tree.fail("sys/bus/i2c/devices/6-0040/iio:device0/in_power0_input", "EIO")
    found = detect("auto", openers={"jetson": lambda: Ina3221Sensor.open(tree.root, reader=tree.read)})
    assert found.sensor.source == "ina3221"


def test_a_sensor_that_breaks_at_once_is_closed() -> None:
    """A sensor that opens and then fails on its first read is closed, and the next one is used."""

    class Broken(FakeSensor):
        def read(self) -> Sample:
            raise DeviceError("it broke")

    broken, good = Broken("jtop", has_total=True), FakeSensor("nvml", has_total=True)
    found = detect(openers={"jtop": lambda: broken, "nvml": lambda: good})
    assert (found.sensor, broken.closed) == (good, 1)
    assert found.attempts[0].reason == "it broke"


def test_another_root_does_not_ask_this_machines_gpus(plant: Plant) -> None:
    """Files below a root tell nothing of the GPUs of the machine that runs: with no sensor there, all say so."""
    found = detect("auto", plant("x86-none").root)
    assert isinstance(found.sensor, NullSensor)
    assert [attempt.source for attempt in found.attempts] == list(SOURCES)
    assert "not of the files below" in str(found.attempts[2].reason)


def test_a_survey_tries_everything_and_keeps_nothing_open() -> None:
    """The survey says of every source whether it works, and closes what it opened."""
    sensor = FakeSensor("jetson", has_total=True)
    attempts = survey(openers={"jetson": lambda: sensor, "nvml": refuse("present, no power on this board")})
    assert [(a.source, a.ok, a.reason) for a in attempts] == [
        ("jetson", True, None),
        ("nvml", False, "present, no power on this board"),
    ]
    assert sensor.closed == 1


def test_importing_loads_no_library_of_a_vendor() -> None:
    """Nothing is detected at import: neither NVML nor jtop is loaded."""
    code = "import sys, edgeprec.devices; print([m for m in ('pynvml', 'jtop', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_public_face_is_sorted_and_whole() -> None:
    """Every public name is there, the list is sorted, and functions are not shadowed by modules of their name."""
    devices = importlib.import_module("edgeprec.devices")
    for name in ("detect", "simulated"):
        importlib.import_module(f"edgeprec.devices.{name}")
    assert sorted(devices.__all__) == devices.__all__
    assert all(hasattr(devices, name) for name in devices.__all__)
    assert callable(devices.detect)
    assert callable(devices.simulated)
    assert devices.Detection is Detection


def test_trees_can_be_planted_twice(tmp_path: Path) -> None:
    """A golden tree is the same however often it is built, and an unknown one is named."""
    first, second = (plant_tree("thor-r38", tmp_path / name).root for name in "ab")
    files = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert files == {path.relative_to(second): path.read_bytes() for path in second.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="expected one of nano-r32"):
        plant_tree("jetson-9000", tmp_path / "c")
