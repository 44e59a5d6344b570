"""Over-current counters: the difference over a run counts, and what cannot be compared is None."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeprec.devices.overcurrent import Protection, compare_protection, read_protection
from edgeprec.devices.tree_builder import TreeBuilder

Plant = Callable[[str], TreeBuilder]


def counters(**events: int | None) -> Protection:
    """Return counters with the given events."""
    return Protection(events=events, can_throttle={}, alerts={}, reasons={})


def test_counters_and_alerts_are_read(plant: Plant) -> None:
    """soctherm_oc's counters and the throttle alerts of Thor; a fan is no alert."""
    orin = read_protection(plant("agx-orin-r36").sysfs())
    assert orin.events == {"oc1": 0, "oc2": 0, "oc3": 1}
    assert orin.can_throttle == {"oc1": True, "oc2": True, "oc3": True}
    assert (orin.alerts, orin.is_throttling) == ({}, None)
    thor = read_protection(plant("thor-r38").sysfs())
    assert thor.alerts == {"cpu-throttle-alert": 0, "gpu-throttle-alert": 0}
    assert thor.is_throttling is False


def test_an_alert_means_throttling(plant: Plant) -> None:
    """A state above 0 is throttling, also when another alert cannot be read."""
    tree = plant("thor-r38")
    tree.file("sys/class/thermal/cooling_device1/cur_state", 1)
    tree.fail("sys/class/thermal/cooling_device0/cur_state", "EAGAIN")
    protection = read_protection(tree.sysfs())
    assert protection.is_throttling is True
    assert protection.alerts["cpu-throttle-alert"] is None
    assert "EAGAIN" in protection.reasons["cpu-throttle-alert"]


def test_one_event_since_boot_is_no_event_in_the_run(plant: Plant) -> None:
    """What was counted before the run does not count."""
    tree = plant("agx-orin-r36")
    before = read_protection(tree.sysfs())
    tree.file("sys/class/hwmon/hwmon5/oc2_event_cnt", 4)
    change = compare_protection(before, read_protection(tree.sysfs()))
    assert change.events == {"oc1": 0, "oc2": 4, "oc3": 0}
    assert change.reasons == {}


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (counters(oc1=5), counters(oc1=2), {"oc1": None}),
        (counters(oc1=None), counters(oc1=2), {"oc1": None}),
        (counters(oc1=1), counters(), {"oc1": None}),
        (counters(), counters(oc1=1), {"oc1": None}),
        (counters(), counters(), {}),
        (counters(oc1=3), counters(oc1=3), {"oc1": 0}),
    ],
)
def test_what_cannot_be_compared_is_none(before: Protection, after: Protection, events: dict[str, int | None]) -> None:
    """A counter that began anew, failed or vanished is None with a reason, never negative and never 0."""
    change = compare_protection(before, after)
    assert change.events == events
    assert set(change.reasons) == {name for name, count in events.items() if count is None}
    assert change.was_throttling is None


def test_damaged_counters_are_none(plant: Plant) -> None:
    """A counter that is not a number is None with a reason, the others are read."""
    tree = plant("agx-orin-r36")
    tree.file("sys/class/hwmon/hwmon5/oc1_event_cnt", "garbage")
    tree.file("sys/class/hwmon/hwmon5/oc2_throt_en", "")
    protection = read_protection(tree.sysfs())
    assert protection.events == {"oc1": None, "oc2": 0, "oc3": 1}
    assert protection.can_throttle["oc2"] is None
    assert "garbage" in protection.reasons["oc1"]


def test_boards_without_counters_claim_nothing(plant: Plant) -> None:
    """Xavier shows no counters: empty, and throttling not known, instead of all well."""
    protection = read_protection(plant("agx-xavier-r32").sysfs())
    assert (protection.events, protection.alerts, protection.is_throttling) == ({}, {}, None)
    assert protection.to_json()["is_throttling"] is None
