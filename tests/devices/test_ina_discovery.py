"""Finding the power monitors: on every way, once each, and again when their folders change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.ina_chips import find_chips
from edgeprec.devices.tree_builder import TreeBuilder

Open = Callable[[TreeBuilder], Ina3221Sensor]
S = 1_000_000_000


def watts(sensor: Ina3221Sensor) -> dict[str, float | None]:
    """Return the power of all rails in mW, by label."""
    sample = sensor.read()
    return {rail.label: sample.values[rail.id] for rail in sensor.rails}


def total_mw(sensor: Ina3221Sensor) -> float:
    """Return the sum of the rails of the total."""
    assert sensor.total is not None, sensor.total_note
    values = sensor.read().values
    return sum(value for rail in sensor.total.rail_ids if (value := values[rail]) is not None)


def agx_orin(tree: TreeBuilder, *, first: int = 3, second: int = 4) -> TreeBuilder:
    """Plant the two chips of an AGX Orin at the given hwmon numbers."""
    folder = tree.hwmon_chip(first, "ina3221", "1-0040")
    for index, (label, mv, ma) in enumerate(
        [("VDD_GPU_SOC", 12008, 280), ("VDD_CPU_CV", 12008, 40), ("VIN_SYS_5V0", 4968, 980)], start=1
    ):
        tree.hwmon_channel(folder, index, label, mv, ma)
    tree.files(folder, {"in7_label": "sum of shunt voltages", "in7_input": 760, "curr4_input": 360})
    folder = tree.hwmon_chip(second, "ina3221", "1-0041")
    tree.hwmon_channel(folder, 1, "NC", 0, 0)
    tree.hwmon_channel(folder, 2, "VDDQ_VDD2_1V8AO", 4968, 80)
    return tree


def test_rails_are_found_through_the_driver_alone(tmp_path: Path) -> None:
    """zeus#226: a driver folder without any ``name`` file is enough."""
    folder = tmp_path / "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon0"
    folder.mkdir(parents=True)
    for name, text in {"in1_label": "VDD_IN", "in1_input": "4984", "curr1_input": "960"}.items():
        (folder / name).write_text(text + "\n")
    sensor = Ina3221Sensor.open(tmp_path)
    assert total_mw(sensor) == pytest.approx(4784.64)
    assert sensor.total is not None
    assert sensor.total.is_assumed


@pytest.mark.parametrize("way", ["driver", "bus", "class", "real class"])
def test_each_way_to_a_chip_is_enough(tmp_path: Path, way: str) -> None:
    """The driver's folder, the bus and the hwmon class each lead to the rail, with the same id where the bus shows."""
    if way == "real class":
        folder = tmp_path / "sys/class/hwmon/hwmon7"
        folder.mkdir(parents=True)
        (folder / "name").write_text("ina3221\n")
    else:
        device = tmp_path / "sys/devices/i2c-1/1-0040"
        folder = device / "hwmon/hwmon7"
        folder.mkdir(parents=True)
        places = {
            "driver": tmp_path / "sys/bus/i2c/drivers/ina3221/1-0040",
            "bus": tmp_path / "sys/bus/i2c/devices/1-0040",
            "class": tmp_path / "sys/class/hwmon/hwmon7",
        }
        places[way].parent.mkdir(parents=True)
        places[way].symlink_to(folder if way == "class" else device)
        ((folder if way == "class" else device) / "name").write_text("ina3221\n")
    for name, text in {"in1_label": "VDD_IN", "in1_input": "4984", "curr1_input": "960"}.items():
        (folder / name).write_text(text + "\n")
    sensor = Ina3221Sensor.open(tmp_path)
    assert [rail.id for rail in sensor.rails] == ["hwmon7:1" if way == "real class" else "1-0040:1"]
    assert total_mw(sensor) == pytest.approx(4784.64)


@pytest.mark.parametrize("layout", ["iio", "hwmon"])
def test_a_chip_met_on_several_ways_counts_once(tree: TreeBuilder, layout: str, open_rails: Open) -> None:
    """iio_device and iio:device0, the bus, the driver and the class are one chip: power is not doubled."""
    if layout == "iio":
        tree.iio_channel(tree.iio_chip(0, "6-0040"), 0, "POM_5V_IN", (5000, 400, 2000))
    else:
        tree.hwmon_channel(tree.hwmon_chip(3, "ina3221", "6-0040"), 1, "POM_5V_IN", 5000, 400)
    assert len(find_chips(tree.sysfs())) == 1
    assert [rail.label for rail in open_rails(tree).rails] == ["POM_5V_IN"]


def test_ids_survive_new_hwmon_numbers(tmp_path: Path, open_rails: Open) -> None:
    """hwmon1/2 at one boot, 3/4 or 10/2 at the next: the rails' ids and values are the same."""
    seen = []
    for first, second in ((1, 2), (3, 4), (10, 2)):
        sensor = open_rails(agx_orin(TreeBuilder(tmp_path / f"boot{first}"), first=first, second=second))
        seen.append(([rail.id for rail in sensor.rails], watts(sensor)))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] == ["1-0040:1", "1-0040:2", "1-0040:3", "1-0041:2"]


class Clock:
    """Nanoseconds that stand still until told."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def renumber(tree: TreeBuilder, address: str, old: int, new: int) -> None:
    """Do what binding the driver anew does: the hwmon folder of a chip gets another number."""
    device = tree.root / f"sys/devices/platform/i2c-1/{address}"
    (device / f"hwmon/hwmon{old}").rename(device / f"hwmon/hwmon{new}")
    (tree.root / f"sys/class/hwmon/hwmon{old}").unlink()
    tree.link(f"sys/class/hwmon/hwmon{new}", f"sys/devices/platform/i2c-1/{address}/hwmon/hwmon{new}")


def test_renumbered_chips_are_found_again_in_the_same_read(tree: TreeBuilder) -> None:
    """ENOENT in the middle of a run leads to one search, and no value is lost."""
    sensor = Ina3221Sensor.open(agx_orin(tree).root)
    before = watts(sensor)
    renumber(tree, "1-0040", 3, 8)
    assert watts(sensor) == before
    assert sensor.read().reasons == {}


def test_a_chip_that_stays_away_is_searched_for_every_ten_seconds(tree: TreeBuilder) -> None:
    """While a chip is gone its rails are None with the reason, the others are read, and searches are rare."""
    reads = {"label": 0}

    def reader(path: str) -> bytes:
        reads["label"] += path.endswith("_label")
        return tree.read(path)

    clock = Clock()
    sensor = Ina3221Sensor.open(agx_orin(tree).root, reader=reader, clock=clock)
    device = tree.root / "sys/devices/platform/i2c-1/1-0040/hwmon"
    kept = tree.root / "kept"
    shutil.move(str(device), kept)
    reads["label"] = 0
    for tick in range(20 * 9):
        clock.now_ns = tick * S // 20
        sample = sensor.read()
        assert sample.values["1-0041:2"] == pytest.approx(397.44)
        assert [sample.values[f"1-0040:{index}"] for index in (1, 2, 3)] == [None] * 3
        assert "ENOENT" in sample.reasons["1-0040:1"]
    assert reads["label"] <= 3, "the chips were searched for at every tick"
    shutil.move(str(kept), device)
    clock.now_ns = 11 * S
    assert sensor.read().reasons == {}


def test_another_rail_at_the_old_place_is_not_taken_for_it(tree: TreeBuilder) -> None:
    """A channel whose label changed is another rail: the old one stays None."""
    sensor = Ina3221Sensor.open(agx_orin(tree).root)
    renumber(tree, "1-0040", 3, 8)
    (tree.root / "sys/class/hwmon/hwmon8/in1_label").write_text("VDD_OTHER\n")
    sample = sensor.read()
    assert sample.values["1-0040:1"] is None
    assert sample.values["1-0040:2"] == pytest.approx(480.32)


def test_a_run_never_changes_its_way_of_reading(tree: TreeBuilder) -> None:
    """A power file that vanishes leaves the rail None: it is not replaced by voltage times current half way."""
    folder = tree.hwmon_chip(4, "ina238", "2-0044")
    tree.files(folder, {"label": "VIN", "power1_input": 15004000, "in1_input": 19875, "curr1_input": 755})
    sensor = Ina3221Sensor.open(tree.root)
    (tree.root / folder / "power1_input").unlink()
    sample = sensor.read()
    assert sample.values == {"2-0044:1": None}
    assert "ENOENT" in sample.reasons["2-0044:1"]
