"""Where the power monitors of a board are: INA3221 in the layouts of JetPack 4 and 5-7, INA238 of Thor.

Chips are found by their driver's name, never by the number of a hwmon folder, on three ways (the driver's folder, the
bus, the hwmon class) that may meet the same folder; it is taken once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Chip", "Layout", "find_chips"]

_BUS = "sys/bus/i2c/devices"
_DRIVERS = "sys/bus/i2c/drivers"
_HWMON = "sys/class/hwmon"
_ADDRESS = re.compile(r"[0-9]+-[0-9a-f]{4}")


class Layout(StrEnum):
    """Which files a chip shows."""

    INA3221_IIO = "ina3221x"
    INA3221_HWMON = "ina3221"
    INA238_HWMON = "ina238"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A power monitor. ``address`` is ``<bus>-00<address>``; ``folder`` holds its data, relative to the root."""

    layout: Layout
    address: str
    folder: str


def find_chips(sysfs: Sysfs) -> tuple[Chip, ...]:
    """Return the power monitors there are, by address."""
    found: dict[str, Chip] = {}
    for chip in (*_by_driver(sysfs), *_by_bus(sysfs), *_by_class(sysfs)):
        found.setdefault(sysfs.real(chip.folder), chip)
    chips: dict[str, Chip] = {}
    for chip in found.values():
        chips.setdefault(chip.address, chip)
    return tuple(chips[address] for address in sorted(chips))


def _by_driver(sysfs: Sysfs) -> Iterator[Chip]:
    for layout in Layout:
        for address in sysfs.names(f"{_DRIVERS}/{layout}"):
            if _ADDRESS.fullmatch(address):
                yield from _data_folders(sysfs, layout, address, f"{_DRIVERS}/{layout}/{address}")


def _by_bus(sysfs: Sysfs) -> Iterator[Chip]:
    for address in sysfs.names(_BUS):
        layout = _layout(sysfs.text(f"{_BUS}/{address}/name").value)
        if layout is not None and _ADDRESS.fullmatch(address):
            yield from _data_folders(sysfs, layout, address, f"{_BUS}/{address}")


def _by_class(sysfs: Sysfs) -> Iterator[Chip]:
    for name in sysfs.names(_HWMON):
        folder = f"{_HWMON}/{name}"
        layout = _layout(sysfs.text(f"{folder}/name").value)
        if layout in (Layout.INA3221_HWMON, Layout.INA238_HWMON):
            address = _address_of(sysfs, folder)
            yield Chip(layout=layout, address=name if address is None else address, folder=folder)


def _data_folders(sysfs: Sysfs, layout: Layout, address: str, device: str) -> Iterator[Chip]:
    if layout is Layout.INA3221_IIO:
        names = [name for name in sysfs.names(device) if name.startswith("iio:device") or name == "iio_device"]
        folders = [f"{device}/{name}" for name in sorted(names, reverse=True)]
    else:
        folders = [f"{device}/hwmon/{name}" for name in sysfs.names(f"{device}/hwmon") if name.startswith("hwmon")]
    for folder in folders:
        if sysfs.is_folder(folder):
            yield Chip(layout=layout, address=address, folder=folder)


def _layout(driver: str | None) -> Layout | None:
    return next((layout for layout in Layout if layout.value == driver), None)


def _address_of(sysfs: Sysfs, folder: str) -> str | None:
    """Return the last part of the real path that looks like an address on a bus."""
    parts = [*sysfs.real(folder).split("/"), *sysfs.real(f"{folder}/device").split("/")]
    return next((part for part in reversed(parts) if _ADDRESS.fullmatch(part)), None)
