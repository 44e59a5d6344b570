"""Energy of x86 CPUs through the kernel's powercap interface (RAPL): packages and memory, wraparound handled."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from edgeprec.devices.rapl_zones import ReadText, Zone, find_zones, powercap_folder
from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Total
from edgeprec.devices.wraparound import WrappingCounter
from edgeprec.errors import DeviceError

__all__ = ["RaplSensor"]

_PERIOD_MS = 50.0
_STEP_MS = 1.0
_LONGEST_TEXT = 64
_FIX = (
    "give a group read access, as root: echo 'z /sys/class/powercap/intel-rapl:*/energy_uj 0440 root power - -' "
    "> /etc/tmpfiles.d/rapl.conf; systemd-tmpfiles --create rapl.conf (not world-readable: it leaks secrets)"
)


class RaplSensor:
    """One rail per zone. The total is the packages and the memory beside them; the platform zone stands apart."""

    source = "rapl"
    period_ms = _PERIOD_MS
    lag_ms = None

    def __init__(self, zones: Sequence[Zone], read: ReadText, clock: Callable[[], int]) -> None:
        self._zones = tuple(zones)
        self._counters = {zone.id: WrappingCounter(zone.range_uj) for zone in zones}
        self._read = read
        self._clock = clock
        self.rails = tuple(_rail(zone) for zone in zones)
        self.total, self.total_note = _total(zones)

    @classmethod
    def open(
        cls,
        *,
        root: Path = Path("/"),
        read: ReadText | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> Self:
        """Find the zones and make sure that one of them can be read.

        Raises:
            DeviceError: there are no zones, or none is readable; the message has the fix.
        """
        read = _read_text if read is None else read
        zones = find_zones(root, read)
        if not zones:
            raise DeviceError(
                f"no RAPL zones under {powercap_folder(root)}: ARM boards and most virtual machines have none"
            )
        sensor = cls(zones, read, clock)
        first = sensor.read()
        if all(value is None for value in first.values.values()):
            raise DeviceError(f"CPU energy cannot be read: {next(iter(first.reasons.values()))}")
        return sensor

    def read(self) -> Sample:
        """Read all zones once. One that fails is None with the reason.

        Raises:
            DeviceError: the zones are gone, as after unloading the driver.
        """
        before_ns = self._clock()
        raw: dict[str, int] = {}
        reasons: dict[str, str] = {}
        missing = 0
        for zone in self._zones:
            try:
                raw[zone.id] = int(self._read(zone.folder / "energy_uj"))
            except OSError as error:
                missing += error.errno == errno.ENOENT
                reasons[zone.id] = _explain(error)
            except ValueError:
                reasons[zone.id] = "energy_uj is not a number"
        if missing == len(self._zones):
            raise DeviceError("the RAPL zones are gone: was the driver intel_rapl_msr unloaded?")
        time_ns = (before_ns + self._clock()) // 2
        counted = {zone_id: self._counters[zone_id].update(value, time_ns) for zone_id, value in raw.items()}
        return Sample(
            time_ns=time_ns,
            values={z.id: counted[z.id].total_uj / 1e3 if z.id in counted else None for z in self._zones},
            reasons=reasons,
            restarts=frozenset(zone_id for zone_id, count in counted.items() if count.is_restart),
        )

    def close(self) -> None:
        """Do nothing: no handle is kept."""


def _rail(zone: Zone) -> Rail:
    return Rail(
        id=zone.id, label=zone.id, quantity=Quantity.ENERGY, parent=zone.inside, step_ms=_STEP_MS, note=zone.note
    )


def _total(zones: Sequence[Zone]) -> tuple[Total | None, str | None]:
    packages = [zone.id for zone in zones if zone.is_package]
    if packages:
        memory = [zone.id for zone in zones if zone.is_memory]
        evidence = f"RAPL: sum of {', '.join([*packages, *memory])}"
        return Total(rail_ids=(*packages, *memory), scope=Scope.CPU, evidence=evidence), None
    platform = [zone.id for zone in zones if zone.is_platform]
    if platform:
        evidence = "RAPL: the platform zone, there is no package zone"
        return Total(rail_ids=(platform[0],), scope=Scope.BOARD_INPUT, evidence=evidence, is_assumed=True), None
    return None, f"no package among the RAPL zones {', '.join(zone.id for zone in zones)}"


def _explain(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"energy_uj is readable by root only: {_FIX}"
    return f"energy_uj cannot be read ({os.strerror(error.errno or 0)})"


def _read_text(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _LONGEST_TEXT).decode("ascii", "replace")
    finally:
        os.close(descriptor)
