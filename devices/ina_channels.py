"""What a power monitor measures: one channel for each rail that is connected, and how its power is read.

Not rails: channels without a label or with the label ``NC`` exactly; ``in4`` to ``in7`` and ``curr4`` of an INA3221,
which are shunt voltages and sums; anything without a current. A channel's power is read from the power file where the
chip has one (INA3221 of JetPack 4 in mW, INA238 in uW), otherwise it is voltage times current.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from edgeprec.devices.ina_chips import Chip, Layout
from edgeprec.devices.sysfs import Number, Sysfs

__all__ = ["Channel", "find_channels"]

_log = logging.getLogger(__name__)

_NOT_CONNECTED = "NC"
_INA238_LABEL = "VIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One connected channel. Paths are relative to the root; ``power`` is None where power is voltage x current."""

    id: str
    label: str
    voltage: str  # mV
    current: str  # mA
    power: str | None
    power_per_mw: float = 1.0
    shunt: str | None = None  # uOhm

    def measures_like(self, other: Channel) -> bool:
        """Return whether both are one rail read in one way: a run never changes from a chip's power to a product."""
        return (self.id, self.label, self.power is None) == (other.id, other.label, other.power is None)

    def read_mw(self, sysfs: Sysfs) -> Number:
        """Return the power in mW. Negative power is data."""
        if self.power is not None:
            power, reason, code = sysfs.number(self.power)
            return Number(None, reason, code) if power is None else Number(power / self.power_per_mw)
        millivolts, reason, code = sysfs.number(self.voltage)
        if millivolts is None:
            return Number(None, reason, code)
        milliamperes, reason, code = sysfs.number(self.current)
        if milliamperes is None:
            return Number(None, reason, code)
        return Number(millivolts * milliamperes / 1000)


def find_channels(sysfs: Sysfs, chip: Chip) -> tuple[Channel, ...]:
    """Return the connected channels of a chip; one that is damaged is left out with a warning."""
    find = {
        Layout.INA3221_IIO: _iio_channels,
        Layout.INA3221_HWMON: _hwmon_channels,
        Layout.INA238_HWMON: _ina238_channel,
    }
    return tuple(find[chip.layout](sysfs, chip))


def _iio_channels(sysfs: Sysfs, chip: Chip) -> Iterator[Channel]:
    for index in (0, 1, 2):
        label = _label(sysfs, chip, index, f"rail_name_{index}")
        voltage, current = (f"{chip.folder}/in_{what}{index}_input" for what in ("voltage", "current"))
        power = f"{chip.folder}/in_power{index}_input"
        has_power = sysfs.exists(power)
        if label is None or not _has_readings(sysfs, chip, label, power if has_power else current):
            continue
        yield Channel(
            id=f"{chip.address}:{index}",
            label=label,
            voltage=voltage,
            current=current,
            power=power if has_power else None,
        )


def _hwmon_channels(sysfs: Sysfs, chip: Chip) -> Iterator[Channel]:
    for index in (1, 2, 3):
        label = _label(sysfs, chip, index, f"in{index}_label")
        current = f"{chip.folder}/curr{index}_input"
        if label is not None and _has_readings(sysfs, chip, label, current):
            yield Channel(
                id=f"{chip.address}:{index}",
                label=label,
                voltage=f"{chip.folder}/in{index}_input",
                current=current,
                power=None,
                shunt=f"{chip.folder}/shunt{index}_resistor",
            )


def _ina238_channel(sysfs: Sysfs, chip: Chip) -> Iterator[Channel]:
    labels = (_clean(sysfs.text(f"{chip.folder}/{name}").value) for name in ("label", "in1_label"))
    label = next((found for found in labels if found is not None), _INA238_LABEL)
    power, current = f"{chip.folder}/power1_input", f"{chip.folder}/curr1_input"
    is_power_readable = sysfs.number(power).value is not None or not sysfs.exists(current)
    if _has_readings(sysfs, chip, label, power if is_power_readable else current):
        yield Channel(
            id=f"{chip.address}:1",
            label=label,
            voltage=f"{chip.folder}/in1_input",
            current=current,
            power=power if is_power_readable else None,
            power_per_mw=1000.0,
        )


def _label(sysfs: Sysfs, chip: Chip, index: int, name: str) -> str | None:
    """Return a connected channel's label. A channel without one is usual on JetPack 6 and newer."""
    path = f"{chip.folder}/{name}"
    if not sysfs.exists(path):
        _log.debug("%s channel %d has no label: not connected", chip.address, index)
        return None
    text, reason, _ = sysfs.text(path)
    label = _clean(text)
    if label is None:
        _log.warning("channel %d of %s is left out: %s", index, chip.address, reason or f"{name} is not text")
    return None if label == _NOT_CONNECTED else label


def _clean(text: str | None) -> str | None:
    return text if text is not None and text.isprintable() and "\ufffd" not in text else None


def _has_readings(sysfs: Sysfs, chip: Chip, label: str, path: str) -> bool:
    if sysfs.exists(path):
        return True
    _log.warning("rail %s of %s is left out: it has no %s", label, chip.address, path.rpartition("/")[2])
    return False
