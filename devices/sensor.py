"""What a power sensor is: rails that can be read, and which of them make up the total.

Power is in milliwatts, energy in millijoules, time in monotonic nanoseconds. A value that was not measured is None and
its reason stands in ``reasons``; it is never 0. Negative values are data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

__all__ = ["Quantity", "Rail", "Sample", "Scope", "Sensor", "Total"]


class Scope(StrEnum):
    """What a total covers."""

    MODULE = "module"
    MODULE_COMPUTED = "module_computed"
    BOARD_INPUT = "board_input"
    GPU = "gpu"
    CPU = "cpu"
    JTOP_SUM = "jtop_sum"


class Quantity(StrEnum):
    """What a rail counts: momentary power (mW) or energy since some start (mJ)."""

    POWER = "power"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One measured supply. ``id`` is stable between boots: ``1-0040:1``, ``gpu0``, ``package-0``."""

    id: str
    label: str
    quantity: Quantity = Quantity.POWER
    parent: str | None = None  # id of the rail whose figure already contains this one
    step: float | None = None  # resolution: mW of one current step, or mJ of one counter step
    step_ms: float | None = None  # time between two new values, where it differs from the sensor's period
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The rails whose sum is the total, what that covers, and why we believe it."""

    rail_ids: tuple[str, ...]
    scope: Scope
    evidence: str
    is_assumed: bool = False
    is_partial: bool = False  # something that belongs to the total cannot be measured: two GPUs, one answers
    is_shared: bool = False  # others draw from the same supply: a GPU split by MIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All rails at one moment. ``time_ns`` is the middle of the reading."""

    time_ns: int
    values: Mapping[str, float | None]  # rail id -> mW or mJ, by the rail's quantity
    reasons: Mapping[str, str] = field(default_factory=dict)  # rail id -> why its value is None
    restarts: frozenset[str] = frozenset()  # rails whose counter began anew: nothing is known since the last sample


class Sensor(Protocol):
    """A source of samples. ``total`` is None when no total is known; ``total_note`` then says why."""

    @property
    def source(self) -> str:
        """Return the short name of the source: ``ina3221``, ``jtop``, ``nvml``, ``rapl``, ``replay``, ``none``."""
        ...

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Return what can be read."""
        ...

    @property
    def total(self) -> Total | None:
        """Return which rails make up the total."""
        ...

    @property
    def total_note(self) -> str | None:
        """Return why there is no total, or what to know about it."""
        ...

    @property
    def period_ms(self) -> float:
        """Return the interval at which reading again brings news."""
        ...

    @property
    def lag_ms(self) -> float | None:
        """Return how far the value trails the truth, where known."""
        ...

    def read(self) -> Sample:
        """Read all rails once. A rail that fails is None with a reason.

        Raises:
            DeviceError: nothing can be read any more.
        """
        ...

    def close(self) -> None:
        """Release handles; calling it twice is harmless."""
        ...
