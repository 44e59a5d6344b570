"""An amount of energy together with everything that says how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edgeprec.devices.sensor import Scope

__all__ = ["EnergyReading", "Method"]


class Method(StrEnum):
    """How the joules came about."""

    COUNTER = "counter"  # the difference of an energy counter
    INTEGRATED_POWER = "integrated_power"  # momentary power, integrated over time
    MIXED = "mixed"  # some rails one way, some the other; one rail never changes


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading:
    """The energy of one window or one phase.

    ``joules`` holds the covered part only: nothing is invented for a gap, ``coverage`` says how much of the time was
    seen, and ``plus_minus_joules`` is wide enough for what the gap may have held. ``is_total`` is False where a rail of
    the total is missing. ``is_shared`` is True where others drew from the same supply. ``negatives`` counts samples
    below zero, which are kept. ``interpolated`` is True where the time is so short against the sensor's steps or lag
    that the value is a share of a longer stretch.
    """

    joules: float
    source: str
    rails: tuple[str, ...]  # labels of the rails summed
    is_total: bool
    scope: Scope | None
    method: Method
    seconds: float
    samples: int
    period_ms: float
    lag_ms: float | None
    coverage: float  # 0..1
    plus_minus_joules: float
    resets: int = 0
    negatives: int = 0
    power_mode: str | None = None
    idle_watts: float | None = None
    joules_above_idle: float | None = None
    interpolated: bool = False
    is_shared: bool = False
    note: str | None = None

    @property
    def watts(self) -> float:
        """Return the mean power of the covered time."""
        return self.joules / (self.seconds * self.coverage)

    def to_json(self) -> dict[str, object]:
        """Return the reading as plain values; ``rail`` joins the labels with a plus sign."""
        return {
            "joules": self.joules,
            "watts": self.watts,
            "source": self.source,
            "rail": " + ".join(self.rails),
            "rails": list(self.rails),
            "is_total": self.is_total,
            "scope": None if self.scope is None else self.scope.value,
            "method": self.method.value,
            "seconds": self.seconds,
            "samples": self.samples,
            "period_ms": self.period_ms,
            "lag_ms": self.lag_ms,
            "coverage": self.coverage,
            "plus_minus_joules": self.plus_minus_joules,
            "resets": self.resets,
            "negatives": self.negatives,
            "power_mode": self.power_mode,
            "idle_watts": self.idle_watts,
            "joules_above_idle": self.joules_above_idle,
            "interpolated": self.interpolated,
            "is_shared": self.is_shared,
            "note": self.note,
        }
