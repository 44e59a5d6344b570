"""The power of every rail at one moment, with its uncertainty, or why there is none.

A rail that counts energy needs two readings: its power is the mean between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgeprec.devices.sensor import Quantity, Rail, Sample, Sensor, Total

__all__ = ["PowerProbe", "PowerReading", "RailPower", "TotalPower"]

_FIRST_READING = "its counter was read once so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPower:
    """One rail. ``plus_minus_mw`` is its resolution, None where that is not known; ``parent`` already contains it."""

    id: str
    label: str
    power_mw: float | None
    plus_minus_mw: float | None
    parent: str | None
    note: str | None
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the rail as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalPower:
    """The sum of a known total's rails. ``is_assumed`` = nothing names the board, its rails look like it."""

    power_mw: float
    plus_minus_mw: float | None
    scope: str
    rails: tuple[str, ...]
    evidence: str
    is_assumed: bool
    is_shared: bool

    def to_json(self) -> dict[str, Any]:
        """Return the total as plain values."""
        return {name: getattr(self, name) for name in self.__slots__} | {"rails": list(self.rails)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """All rails of one sensor. Where ``total`` is None, ``reason`` says why; elsewhere it is a remark or None."""

    unix_time_s: float
    source: str
    rails: tuple[RailPower, ...]
    total: TotalPower | None
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the reading as plain values."""
        return {
            "unix_time_s": self.unix_time_s,
            "source": self.source,
            "rails": [rail.to_json() for rail in self.rails],
            "total": None if self.total is None else self.total.to_json(),
            "reason": self.reason,
        }


class PowerProbe:
    """Reads a sensor and remembers the last reading of its counters."""

    def __init__(self, sensor: Sensor, *, wall_clock_s: Callable[[], float] = time.time) -> None:
        self._sensor = sensor
        self._wall_clock_s = wall_clock_s
        self._before: Sample | None = None

    @property
    def needs_two_readings(self) -> bool:
        """Whether a rail counts energy, so that a single reading tells no power."""
        return any(rail.quantity is Quantity.ENERGY for rail in self._sensor.rails)

    def read(self) -> PowerReading:
        """Read every rail now.

        Raises:
            DeviceError: nothing can be read any more.
        """
        sample, before = self._sensor.read(), self._before
        self._before = sample
        labels = {rail.id: rail.label for rail in self._sensor.rails}
        rails = tuple(_rail_power(rail, sample, before, labels) for rail in self._sensor.rails)
        total, reason = _total_power(self._sensor, {rail.id: rail for rail in rails})
        return PowerReading(
            unix_time_s=self._wall_clock_s(), source=self._sensor.source, rails=rails, total=total, reason=reason
        )

    def unread(self, reason: str) -> PowerReading:
        """Return a reading of a sensor that gives none any more, or never did."""
        rails = tuple(_named(rail, None, None, reason) for rail in self._sensor.rails)
        return PowerReading(
            unix_time_s=self._wall_clock_s(), source=self._sensor.source, rails=rails, total=None, reason=reason
        )


def _rail_power(rail: Rail, sample: Sample, before: Sample | None, labels: dict[str, str]) -> RailPower:
    value = sample.values.get(rail.id)
    parent = labels.get(rail.parent or "")
    if value is None:
        return _named(rail, None, None, sample.reasons.get(rail.id, "the sensor gave no value"), parent)
    if rail.quantity is Quantity.POWER:
        return _named(rail, value, rail.step, None, parent)
    start = None if before is None else before.values.get(rail.id)
    if before is None or start is None or sample.time_ns <= before.time_ns:
        return _named(rail, None, None, _FIRST_READING, parent)
    if rail.id in sample.restarts or value < start:
        return _named(rail, None, None, "its counter began anew", parent)
    seconds = (sample.time_ns - before.time_ns) / 1e9
    power_mw = (value - start) / seconds
    plus_minus_mw = ((rail.step or 0.0) + power_mw * (rail.step_ms or 0.0) / 1e3) / seconds
    return _named(rail, power_mw, plus_minus_mw or None, None, parent)


def _named(
    rail: Rail, power_mw: float | None, plus_minus_mw: float | None, reason: str | None, parent: str | None = None
) -> RailPower:
    return RailPower(
        id=rail.id,
        label=rail.label,
        power_mw=power_mw,
        plus_minus_mw=plus_minus_mw,
        parent=parent,
        note=rail.note,
        reason=reason,
    )


def _total_power(sensor: Sensor, rails: dict[str, RailPower]) -> tuple[TotalPower | None, str | None]:
    """Return the sum over the total's rails; a part of it is never given out as the total."""
    total = sensor.total
    if total is None or total.is_partial:
        return None, sensor.total_note or f"no total is known for the rails of {sensor.source}"
    parts = [rails[rail_id] for rail_id in total.rail_ids]
    missing = [f"{part.label} not measured: {part.reason}" for part in parts if part.power_mw is None]
    if missing:
        return None, "; ".join(missing)
    return _sum(total, parts), sensor.total_note


def _sum(total: Total, parts: list[RailPower]) -> TotalPower:
    steps = [part.plus_minus_mw for part in parts if part.plus_minus_mw is not None]
    return TotalPower(
        power_mw=sum(part.power_mw for part in parts if part.power_mw is not None),
        plus_minus_mw=sum(steps) if len(steps) == len(parts) else None,
        scope=total.scope.value,
        rails=tuple(part.label for part in parts),
        evidence=total.evidence,
        is_assumed=total.is_assumed,
        is_shared=total.is_shared,
    )
