"""Temperatures: offline zones are None and left in peace, constants do not count, the junction decides."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.thermal import Thermal
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]
S = 1_000_000_000


def test_an_offline_zone_hides_no_other(tree: TreeBuilder) -> None:
    """node_exporter#3071: EAGAIN is None with its name, the CPU's zone is read."""
    tree.zone(0, "cpu-thermal", 51187)
    tree.zone(2, "cv0-thermal", "EAGAIN")
    cpu, cv0 = Thermal(tree.sysfs()).read(0).zones
    assert (cpu.name, cpu.celsius, cpu.reason) == ("cpu-thermal", 51.187, None)
    assert (cv0.name, cv0.celsius) == ("cv0-thermal", None)
    assert "unavailable: EAGAIN" in str(cv0.reason)
    assert "offline" in str(cv0.reason)


@pytest.mark.parametrize("fault", ["empty", "missing", "-256000", "-256000000", "garbage", "folder"])
def test_every_sort_of_offline_zone_is_none(tree: TreeBuilder, fault: str) -> None:
    """Empty, missing, -256 C and rubbish are None with a reason, never a temperature."""
    tree.zone(0, "cpu-thermal", 40000)
    tree.zone(1, "gpu-thermal", 0)
    temp = tree.root / "sys/class/thermal/thermal_zone1/temp"
    if fault == "missing":
        temp.unlink()
    elif fault == "folder":
        temp.unlink()
        temp.mkdir()
    else:
        temp.write_text("" if fault == "empty" else fault + "\n")
    reading = Thermal(tree.sysfs()).read(0)
    assert reading.zones[1].celsius is None
    assert str(reading.zones[1].reason).startswith("unavailable: ")
    assert reading.hottest_c == 40.0


@pytest.mark.parametrize("celsius", [0, -12.5, 104.5])
def test_cold_and_hot_are_data(tree: TreeBuilder, celsius: float) -> None:
    """Zero and negative temperatures are read as they stand."""
    tree.zone(0, "cpu-thermal", round(celsius * 1000))
    assert Thermal(tree.sysfs()).read(0).hottest_c == celsius


def test_the_pmic_raises_no_alarm(tree: TreeBuilder) -> None:
    """balena-jetson#142: the PMIC's constant 100 C is listed as a constant and is not the hottest zone."""
    tree.zone(0, "CPU-therm", 41000)
    tree.zone(4, "PMIC-Die", 100000)
    reading = Thermal(tree.sysfs()).read(0)
    assert (reading.hottest_c, reading.hottest_zone) == (41.0, "CPU-therm")
    assert [zone.is_constant for zone in reading.zones] == [False, True]


def test_the_junction_decides(tree: TreeBuilder) -> None:
    """Where there is a tj zone it counts, even when another zone shows more; otherwise the highest does."""
    tree.zone(0, "cpu-thermal", 53000)
    tree.zone(1, "tj-thermal", 51000)
    assert Thermal(tree.sysfs()).read(0).hottest_c == 51.0
    tree.fail("sys/class/thermal/thermal_zone1/temp", "EAGAIN")
    assert Thermal(tree.sysfs()).read(0).hottest_c == 53.0


def test_a_failing_zone_is_left_alone_for_thirty_seconds(tree: TreeBuilder) -> None:
    """A zone that fails costs one read in 30 s, keeps its reason meanwhile, and is back when it works."""
    tree.zone(0, "cpu-thermal", 40000)
    tree.zone(1, "gpu-thermal", "EAGAIN")
    reads: list[str] = []

    def reader(path: str) -> bytes:
        reads.append(path)
        return tree.read(path)

    thermal = Thermal(Sysfs(tree.root, reader=reader))
    reads.clear()
    for second in range(30):
        zone = thermal.read(second * S).zones[1]
        assert zone.celsius is None
        assert "EAGAIN" in str(zone.reason)
    assert sum("thermal_zone1" in path for path in reads) == 1
    assert sum("thermal_zone0" in path for path in reads) == 30
    tree.mend("sys/class/thermal/thermal_zone1/temp")
    tree.file("sys/class/thermal/thermal_zone1/temp", 45000)
    assert thermal.read(29 * S).zones[1].celsius is None
    assert thermal.read(30 * S).zones[1].celsius == 45.0
    assert thermal.read(31 * S).zones[1].celsius == 45.0


def test_a_zone_without_a_type_keeps_its_number(tree: TreeBuilder) -> None:
    """A zone whose type cannot be read is called by its folder and still measured; numbers sort as numbers."""
    for number in (10, 2):
        tree.zone(number, f"zone{number}-thermal", 30000 + number)
    tree.fail("sys/class/thermal/thermal_zone2/type", errno.EIO)
    assert [(z.name, z.celsius) for z in Thermal(tree.sysfs()).read(0).zones] == [
        ("thermal_zone2", 30.002),
        ("zone10-thermal", 30.010),
    ]


def test_a_machine_without_zones_has_no_temperature(plant: Plant) -> None:
    """No zone is None, not 0 C."""
    reading = Thermal(plant("x86-none").sysfs()).read(0)
    assert (reading.zones, reading.hottest_c, reading.hottest_zone) == ((), None, None)
    assert reading.to_json() == {"hottest_c": None, "hottest_zone": None, "zones": []}
