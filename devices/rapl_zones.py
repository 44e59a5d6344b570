"""The zones of a CPU's energy counters under /sys/class/powercap: found, told apart, each counted once.

The class folder lists zones flat and the device tree nests them, so one zone is met twice. A package may also be listed
a second time through its memory-mapped registers, and several dies may mirror one counter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReadText", "Zone", "find_zones", "powercap_folder"]

ReadText = Callable[[Path], str]

_CONTROL = re.compile(r"intel-rapl(-mmio)?")
_ZONE = re.compile(r"intel-rapl(-mmio)?((:\d+)+)")
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_DIE = re.compile(r"package-(\d+)-die-\d+")
_MIRROR_UJ = 100_000  # counters of different dies that agree to 0.1 J are one counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One energy counter. ``inside`` is the id of the zone whose figure contains this one."""

    id: str
    name: str
    folder: Path
    inside: str | None
    range_uj: int | None
    note: str | None = None

    @property
    def is_package(self) -> bool:
        """Return whether it is a CPU package or one of its dies."""
        return _PACKAGE.fullmatch(self.name) is not None

    @property
    def is_memory(self) -> bool:
        """Return whether it is memory, which no package contains."""
        return self.name == "dram"

    @property
    def is_platform(self) -> bool:
        """Return whether it is the whole platform, which contains the packages."""
        return self.name == "psys"


def powercap_folder(root: Path) -> Path:
    """Return where the zones are."""
    return root / "sys/class/powercap"


def find_zones(root: Path, read: ReadText) -> tuple[Zone, ...]:
    """Return the zones of a machine in order of their numbers; a folder without a name or a counter is none."""
    named = []
    for folder in _folders(powercap_folder(root)):
        try:
            named.append((folder, read(folder / "name").strip()))
        except OSError:
            continue
    zones: list[Zone] = []
    ids: dict[str, str] = {}  # number of the folder -> id
    for folder, name in named:
        is_second_listing = "-mmio" in folder.name and any(
            other == name and "-mmio" not in place.name for place, other in named
        )
        if is_second_listing or _is_mirror(folder, name, zones, read):
            continue
        above = ids.get(folder.name.rpartition(":")[0])
        zone_id = _unique(name if above is None else f"{above}/{name}", ids)
        ids[folder.name] = zone_id
        zones.append(
            Zone(
                id=zone_id,
                name=name,
                folder=folder,
                inside=None if name == "dram" else above,
                range_uj=_number(folder / "max_energy_range_uj", read),
                note="the whole platform: contains the packages, never added to them" if name == "psys" else None,
            )
        )
    return tuple(zones)


def _folders(top: Path) -> list[Path]:
    """Return each zone's folder once, sorted by its numbers, the registers of the CPU before memory-mapped ones."""
    found: dict[Path, Path] = {}
    for folder in _walk(top):
        found.setdefault(folder.resolve(), folder)
    return sorted(found.values(), key=lambda folder: ("-mmio" in folder.name, _numbers(folder.name)))


def _walk(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if _ZONE.fullmatch(entry.name):
            yield entry
        if _ZONE.fullmatch(entry.name) or _CONTROL.fullmatch(entry.name):
            yield from _walk(entry)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in name.split(":")[1:])


def _is_mirror(folder: Path, name: str, zones: list[Zone], read: ReadText) -> bool:
    die = _DIE.fullmatch(name)
    mine = _number(folder / "energy_uj", read)
    if die is None or mine is None:
        return False
    for zone in zones:
        other = _DIE.fullmatch(zone.name)
        theirs = _number(zone.folder / "energy_uj", read) if other and other[1] == die[1] else None
        if theirs is not None and abs(theirs - mine) < _MIRROR_UJ:
            return True
    return False


def _unique(zone_id: str, ids: dict[str, str]) -> str:
    taken = set(ids.values())
    candidates = (zone_id if i == 0 else f"{zone_id}#{i}" for i in range(len(taken) + 1))
    return next(candidate for candidate in candidates if candidate not in taken)


def _number(path: Path, read: ReadText) -> int | None:
    try:
        return int(read(path))
    except (OSError, ValueError):
        return None
