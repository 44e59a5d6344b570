"""The power figures of jetson-stats in one shape. Its releases gave them in several; its running averages are left out.

to 4.1     (total, rails)   each {"cur": mW, "avg": mW}
from 4.2   {"rail": {NAME: {"volt", "curr", "power", "avg", ...}}, "tot": {...}}
           "tot" is the input rail, which then has a "name" and is missing from "rail", or a plain sum
no sensors {}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeprec.errors import DeviceError

__all__ = ["JtopPower", "read_power"]

_KEYS = ("power", "cur")
_SUPPLY_WORDS = ("ucsi", "tcpm")  # what a USB-C supply may deliver, not what is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class JtopPower:
    """Rails in mW by name. ``total_name`` is the rail that is the total, None where jtop only gives ``sum_mw``."""

    rails_mw: Mapping[str, float | None]
    total_name: str | None
    sum_mw: float | None
    has_supplies: bool  # supplies were among the rails, and so in jtop's sum


def read_power(power: Any) -> JtopPower:
    """Return the figures of ``jtop.power`` whatever its shape. A rail without a usable figure is None.

    Raises:
        DeviceError: it has no shape known here, or holds nothing.
    """
    rails, total = _parts(power)
    supplies = [name for name, rail in rails.items() if _is_supply(name, rail)]
    rails_mw = {name: _milliwatts(rail) for name, rail in rails.items() if name not in supplies}
    name = total.get("name")
    if isinstance(name, str):
        rails_mw[name] = _milliwatts(total)
    if not rails_mw and _milliwatts(total) is None:
        raise DeviceError("jtop is running but sees no power sensor on this board")
    return JtopPower(
        rails_mw=rails_mw,
        total_name=name if isinstance(name, str) else None,
        sum_mw=None if isinstance(name, str) else _milliwatts(total),
        has_supplies=bool(supplies),
    )


def _parts(power: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(power, Mapping):
        rails, total = power.get("rail", {}), power.get("tot", {})
    elif isinstance(power, Sequence) and not isinstance(power, str | bytes) and len(power) == 2:
        total, rails = power
    else:
        raise DeviceError(f"jtop gave its power as {type(power).__name__}, expected a mapping: upgrade EdgePrec")
    if not isinstance(rails, Mapping) or not isinstance(total, Mapping):
        raise DeviceError("jtop gave its power in a shape that is not known: upgrade EdgePrec")
    return rails, total


def _milliwatts(rail: Any) -> float | None:
    if not isinstance(rail, Mapping):
        return None
    for key in _KEYS:
        value = rail.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def _is_supply(name: str, rail: Any) -> bool:
    kind = str(rail.get("type", "")) if isinstance(rail, Mapping) else ""
    return any(word in f"{name} {kind}".lower() for word in _SUPPLY_WORDS)
