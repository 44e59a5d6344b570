"""One line of NVIDIA's tegrastats: power rails, temperatures, GPU load, memory. Fields that are missing are None.

Rails read ``NAME now/average`` in mW, with or without the unit, since JetPack 7 with a third number; numbers may be
negative. ``GPU@39.5C`` is a temperature and ``GPU 120/100`` a rail of the same name: both are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["RailPower", "TegrastatsLine", "parse_line"]

_RAIL = re.compile(
    r"(?<!\S)(?P<name>[A-Z][A-Z0-9_]*) "
    r"(?P<now>-?\d+)(?:mW)?/(?P<average>-?\d+)(?:mW)?(?:/(?P<highest>-?\d+)(?:mW)?)?(?!\S)"
)
_TEMPERATURE = re.compile(
    r"(?<!\S)(?P<name>[A-Za-z][A-Za-z0-9_]*)@(?P<now>-?\d+(?:\.\d+)?)C(?:/-?\d+(?:\.\d+)?C)?(?!\S)"
)
_GPU_LOAD = re.compile(r"(?<!\S)GR3D_FREQ (?P<percent>\d+)%")
_MEMORY = re.compile(r"(?<!\S)RAM (?P<used>\d+)/(?P<total>\d+)MB")
_DATE = re.compile(r"^(?P<date>\d{2}-\d{2}-\d{4}) (?P<time>\d{2}:\d{2}:\d{2})(?!\S)")
_NOT_RAILS = frozenset({"RAM", "SWAP", "IRAM"})
_OFFLINE_C = -256.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPower:
    """A rail in milliwatts: now, tegrastats' own running mean, and the highest since its start where it is printed."""

    now_mw: float
    average_mw: float
    highest_mw: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TegrastatsLine:
    """What one line says. ``temperatures_c`` leaves out zones that are switched off."""

    rails: Mapping[str, RailPower]
    temperatures_c: Mapping[str, float]
    gpu_load_percent: float | None
    memory_used_mb: int | None
    memory_total_mb: int | None
    date: str | None  # MM-DD-YYYY
    time: str | None  # HH:MM:SS


def parse_line(line: str) -> TegrastatsLine:
    """Return what a line says; a line of something else has no rails."""
    load = _GPU_LOAD.search(line)
    memory = _MEMORY.search(line)
    date = _DATE.match(line)
    return TegrastatsLine(
        rails={
            found["name"]: RailPower(
                now_mw=float(found["now"]),
                average_mw=float(found["average"]),
                highest_mw=None if found["highest"] is None else float(found["highest"]),
            )
            for found in _RAIL.finditer(line)
            if found["name"] not in _NOT_RAILS
        },
        temperatures_c={
            found["name"]: float(found["now"])
            for found in _TEMPERATURE.finditer(line)
            if float(found["now"]) != _OFFLINE_C
        },
        gpu_load_percent=None if load is None else float(load["percent"]),
        memory_used_mb=None if memory is None else int(memory["used"]),
        memory_total_mb=None if memory is None else int(memory["total"]),
        date=None if date is None else date["date"],
        time=None if date is None else date["time"],
    )
