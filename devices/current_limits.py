"""The current limits that protect a board, rail by rail, and whether one is exceeded. Never written."""

from __future__ import annotations

from dataclasses import dataclass

from edgeprec.devices.ina_channels import Channel, find_channels
from edgeprec.devices.ina_chips import find_chips
from edgeprec.devices.sysfs import Sysfs

__all__ = ["CurrentLimit", "read_current_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLimit:
    """A rail's limits in mA: ``warn_ma`` of the averaged, ``crit_ma`` of the momentary current; None if unknown."""

    rail_id: str
    label: str
    warn_ma: float | None
    crit_ma: float | None
    is_exceeded: bool | None

    def to_json(self) -> dict[str, object]:
        """Return the limits as plain values."""
        return {
            "rail_id": self.rail_id,
            "label": self.label,
            "warn_ma": self.warn_ma,
            "crit_ma": self.crit_ma,
            "is_exceeded": self.is_exceeded,
        }


def read_current_limits(sysfs: Sysfs) -> tuple[CurrentLimit, ...]:
    """Return the limits of all rails that have any. Never raises."""
    channels = (channel for chip in find_chips(sysfs) for channel in find_channels(sysfs, chip))
    limits = (_limit(sysfs, channel) for channel in channels)
    return tuple(limit for limit in limits if limit.warn_ma is not None or limit.crit_ma is not None)


def _limit(sysfs: Sysfs, channel: Channel) -> CurrentLimit:
    folder, index = channel.current.rpartition("/")[0], channel.id.rpartition(":")[2]
    is_iio = channel.current.endswith(f"in_current{index}_input")
    warn = f"warn_current_limit_{index}" if is_iio else f"curr{index}_max"
    crit = f"crit_current_limit_{index}" if is_iio else f"curr{index}_crit"
    alarms = [sysfs.number(f"{folder}/{name}_alarm").value for name in (warn, crit)]
    known = [alarm for alarm in alarms if alarm is not None]
    return CurrentLimit(
        rail_id=channel.id,
        label=channel.label,
        warn_ma=sysfs.leading_number(f"{folder}/{warn}").value,
        crit_ma=sysfs.leading_number(f"{folder}/{crit}").value,
        is_exceeded=any(alarm > 0 for alarm in known) if known else None,
    )
