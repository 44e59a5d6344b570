"""Current limits: read with or without a unit, never written, None where they are damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeprec.devices.current_limits import read_current_limits
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


def test_limits_of_jetpack_4_carry_a_unit(plant: Plant) -> None:
    """``32760 ma`` is 32760 mA; rails without limit files are not listed."""
    (limit,) = read_current_limits(plant("nano-r32").sysfs())
    assert (limit.label, limit.warn_ma, limit.crit_ma, limit.is_exceeded) == ("POM_5V_IN", 32760, 32760, None)


@pytest.mark.parametrize(
    ("warn", "crit", "expected"),
    [
        ("32760 ma", "32760", (32760.0, 32760.0)),
        ("garbage", "5000 mA", (None, 5000.0)),
        ("", "5000", (None, 5000.0)),
        ("ma 5", "x", None),
        ("0", "0", (0.0, 0.0)),
    ],
)
def test_damaged_limits_are_none(
    tree: TreeBuilder, warn: str, crit: str, expected: tuple[float | None, float | None] | None
) -> None:
    """Garbage is None, not 0; a rail without any usable limit is left out."""
    folder = tree.iio_chip(0, "6-0040")
    tree.iio_channel(folder, 0, "POM_5V_IN", (5000, 400, 2000))
    tree.files(folder, {"warn_current_limit_0": warn, "crit_current_limit_0": crit})
    limits = read_current_limits(tree.sysfs())
    assert [(limit.warn_ma, limit.crit_ma) for limit in limits] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("alarms", "is_exceeded"),
    [({}, None), ({"curr1_max_alarm": 0}, False), ({"curr1_max_alarm": 0, "curr1_crit_alarm": 1}, True)],
)
def test_alarms_of_newer_jetpacks(plant: Plant, alarms: dict[str, int], is_exceeded: bool | None) -> None:
    """curr1_max is the averaged limit, curr1_crit the momentary one, and their alarms say whether it is exceeded."""
    tree = plant("xavier-nx-r35")
    tree.files("sys/class/hwmon/hwmon2", alarms)
    (limit,) = read_current_limits(tree.sysfs())
    assert (limit.rail_id, limit.warn_ma, limit.crit_ma) == ("7-0040:1", 4500, 5000)
    assert limit.is_exceeded is is_exceeded
    assert limit.to_json()["is_exceeded"] is is_exceeded


def test_a_board_without_limits_lists_none(plant: Plant) -> None:
    """No limit files, no limits."""
    assert read_current_limits(plant("agx-orin-r36").sysfs()) == ()
    assert read_current_limits(plant("x86-none").sysfs()) == ()
