"""Temperatures of a board's thermal zones: offline zones are None, zones that are constants do not count.

A zone that fails is left alone for 30 s and then probed again, so that a powered-down unit costs no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Thermal", "ThermalReading", "ZoneReading"]

_CLASS = "sys/class/thermal"
_PROBE_AGAIN_NS = 30_000_000_000
_OFFLINE_C = -200.0  # the kernel's -256 C and anything else that no chip survives
_JUNCTION = ("tj-thermal", "tj-therm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneReading:
    """One zone: its temperature, or None and why. ``is_constant`` marks the PMIC's zones, which hold a fixed figure."""

    name: str
    celsius: float | None
    is_constant: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThermalReading:
    """All zones. ``hottest_c`` is the junction where the board has such a zone, else the highest that can be read."""

    zones: tuple[ZoneReading, ...]
    hottest_c: float | None
    hottest_zone: str | None

    def to_json(self) -> dict[str, object]:
        """Return the reading as plain values."""
        return {
            "hottest_c": self.hottest_c,
            "hottest_zone": self.hottest_zone,
            "zones": [
                {"name": z.name, "celsius": z.celsius, "is_constant": z.is_constant, "reason": z.reason}
                for z in self.zones
            ],
        }


class Thermal:
    """The thermal zones of a machine. The caller passes the time, any clock that only moves on."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._folders = tuple(f"{_CLASS}/{name}" for name in sysfs.names(_CLASS) if name.startswith("thermal_zone"))
        self._names = {folder: _name(sysfs, folder) for folder in self._folders}
        self._suspended: dict[str, tuple[int, str]] = {}  # folder -> when to probe again, reason

    def read(self, now_ns: int) -> ThermalReading:
        """Read all zones that are not suspended. Never raises."""
        zones = tuple(self._read_zone(folder, now_ns) for folder in self._folders)
        counting = [(z.celsius, z.name) for z in zones if z.celsius is not None and not z.is_constant]
        junction = [zone for zone in counting if zone[1].lower() in _JUNCTION]
        hottest_c, hottest_zone = max(junction or counting, default=(None, None))
        return ThermalReading(zones=zones, hottest_c=hottest_c, hottest_zone=hottest_zone)

    def _read_zone(self, folder: str, now_ns: int) -> ZoneReading:
        name = self._names[folder]
        until_ns, reason = self._suspended.get(folder, (now_ns, ""))
        celsius = None
        if now_ns >= until_ns:
            celsius, reason = self._probe(folder)
            if celsius is None:
                self._suspended[folder] = (now_ns + _PROBE_AGAIN_NS, reason)
            else:
                self._suspended.pop(folder, None)
        return ZoneReading(
            name=name,
            celsius=celsius,
            is_constant="pmic" in name.lower(),
            reason=None if celsius is not None else reason,
        )

    def _probe(self, folder: str) -> tuple[float | None, str]:
        millidegrees, reason, _ = self._sysfs.number(f"{folder}/temp")
        if millidegrees is None:
            return None, f"unavailable: {reason}"
        celsius = millidegrees / 1000
        if celsius <= _OFFLINE_C:
            return None, f"unavailable: offline, the kernel says {celsius:g} C"
        return celsius, ""


def _name(sysfs: Sysfs, folder: str) -> str:
    return sysfs.text(f"{folder}/type").value or folder.rpartition("/")[2]
