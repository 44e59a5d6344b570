"""The power of a generation over time, for its trace and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeprec.devices.window import Window

__all__ = ["Metered", "PowerPoint", "power_points"]


class _Tally(Protocol):
    start_ns: int


class Metered(Protocol):
    """The part of a generation that is needed here. ``window`` measures where it is a meter's."""

    @property
    def window(self) -> object: ...

    @property
    def tally(self) -> _Tally: ...


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """Rails by label at one moment after the start; the readings at both ends stand just outside of the generation.

    ``total_mw`` is None where not every rail of a known total was seen.
    """

    time_ns: int
    milliwatts: Mapping[str, float | None]
    total_mw: float | None


def power_points(generation: Metered) -> tuple[PowerPoint, ...]:
    """Return the samples of a generation that has ended; none where nothing was measured."""
    window = generation.window
    if not isinstance(window, Window):
        return ()
    reading = window.reading
    of_total = reading.rails if reading is not None and reading.is_total else ()
    return tuple(
        PowerPoint(time_ns - generation.tally.start_ns, milliwatts, _sum([milliwatts.get(rail) for rail in of_total]))
        for time_ns, milliwatts in window.rail_traces()
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
