"""Over-current events and throttling that a board has counted: what matters is the difference over a run.

One event since boot is normal on some carriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Protection", "ProtectionChange", "compare_protection", "read_protection"]

_HWMON = "sys/class/hwmon"
_THERMAL = "sys/class/thermal"
_COUNTERS = "soctherm_oc"
_ALERT = "-throttle-alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The counters at one moment. Empty mappings mean that the board shows none, not that nothing happened."""

    events: Mapping[str, int | None]  # oc1 -> events since boot
    can_throttle: Mapping[str, bool | None]  # oc1 -> whether an event throttles
    alerts: Mapping[str, int | None]  # cpu-throttle-alert -> state, above 0 while throttling
    reasons: Mapping[str, str]

    @property
    def is_throttling(self) -> bool | None:
        """Return whether an alert is up, None where the board shows none."""
        states = [state for state in self.alerts.values() if state is not None]
        return any(state > 0 for state in states) if states else None

    def to_json(self) -> dict[str, object]:
        """Return the counters as plain values."""
        return {
            "events": dict(self.events),
            "can_throttle": dict(self.can_throttle),
            "alerts": dict(self.alerts),
            "is_throttling": self.is_throttling,
            "reasons": dict(self.reasons),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionChange:
    """What was counted between two moments; None where a counter could not be compared, with the reason."""

    events: Mapping[str, int | None]
    was_throttling: bool | None
    reasons: Mapping[str, str]


def read_protection(sysfs: Sysfs) -> Protection:
    """Read all counters once. Never raises."""
    events: dict[str, int | None] = {}
    can_throttle: dict[str, bool | None] = {}
    alerts: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for folder in _named_folders(sysfs, _HWMON, "name", _COUNTERS):
        for file in sysfs.names(folder):
            name, _, what = file.partition("_")
            if what == "event_cnt":
                events[name] = _count(sysfs, f"{folder}/{file}", name, reasons)
            elif what == "throt_en":
                enabled = sysfs.number(f"{folder}/{file}").value
                can_throttle[name] = None if enabled is None else enabled > 0
    for folder, kind in _alert_folders(sysfs):
        alerts[kind] = _count(sysfs, f"{folder}/cur_state", kind, reasons)
    return Protection(events=events, can_throttle=can_throttle, alerts=alerts, reasons=reasons)


def compare_protection(before: Protection, after: Protection) -> ProtectionChange:
    """Return what happened in between. A counter that ran backwards began anew and cannot be compared."""
    events: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for name in {**before.events, **after.events}:
        first, last = before.events.get(name), after.events.get(name)
        if first is None or last is None:
            events[name] = None
            reasons[name] = after.reasons.get(name) or before.reasons.get(name) or "it was not there both times"
        elif last < first:
            events[name] = None
            reasons[name] = f"the counter began anew: {first} before, {last} after"
        else:
            events[name] = last - first
    states = [state for state in (before.is_throttling, after.is_throttling) if state is not None]
    return ProtectionChange(events=events, was_throttling=any(states) if states else None, reasons=reasons)


def _named_folders(sysfs: Sysfs, parent: str, file: str, name: str) -> list[str]:
    folders = [f"{parent}/{entry}" for entry in sysfs.names(parent)]
    return [folder for folder in folders if sysfs.text(f"{folder}/{file}").value == name]


def _alert_folders(sysfs: Sysfs) -> list[tuple[str, str]]:
    folders = [f"{_THERMAL}/{entry}" for entry in sysfs.names(_THERMAL) if entry.startswith("cooling_device")]
    kinds = [(folder, sysfs.text(f"{folder}/type").value) for folder in folders]
    return [(folder, kind) for folder, kind in kinds if kind is not None and kind.endswith(_ALERT)]


def _count(sysfs: Sysfs, path: str, name: str, reasons: dict[str, str]) -> int | None:
    value, reason, _ = sysfs.number(path)
    if value is None:
        reasons[name] = reason or "it could not be read"
        return None
    return int(value)
