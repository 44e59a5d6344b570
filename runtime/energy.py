"""From a meter's window to the energy a reply carries; a session without a sensor says why."""

from __future__ import annotations

from typing import Protocol, Self

from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.window import Window
from edgeprec.runtime.reply import EnergyStats

__all__ = ["PHASES", "EnergyWindow", "NoWindow", "PhasePower", "energy_stats"]

PHASES = ("prefill", "draft", "verify", "idle")


class EnergyWindow(Protocol):
    """What a generation does to whatever measures it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        ...


class NoWindow:
    """Measures nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def mark(self, phase: str) -> None:
        """Nothing is measured."""


class PhasePower:
    """The mean power of each phase in the last generation that measured it: what a round's joules are told from.

    A round is shorter than any sensor's step, so its joules are its time at the power its phases had before. Before the
    first measured generation nothing is known.
    """

    def __init__(self) -> None:
        self._mw: dict[str, float] = {}

    def learn(self, window: Window) -> None:
        """Take the phases of a closed window."""
        self._mw |= {phase: 1e3 * reading.watts for phase, reading in window.by_phase.items() if reading is not None}

    def millijoules(self, phase: str, duration_ns: int) -> float | None:
        """Return the energy of so much time in a phase, None while its power is not known."""
        power_mw = self._mw.get(phase)
        return None if power_mw is None else power_mw * duration_ns * 1e-9


def energy_stats(window: Window, *, new_tokens: int) -> tuple[EnergyStats | None, str | None]:
    """Return a closed window's energy, or None and the reason."""
    reading = window.reading
    if reading is None:
        return None, window.note or "not measured"
    by_phase = {phase: _joules(window.by_phase.get(phase)) for phase in PHASES if phase in window.by_phase}
    stats = EnergyStats(
        joules=reading.joules,
        joules_per_token=reading.joules / new_tokens if new_tokens else None,
        by_phase=by_phase,
        source=reading.source,
        rail="+".join(reading.rails),
        is_total=reading.is_total,
        coverage=reading.coverage,
        plus_minus_joules=reading.plus_minus_joules,
        scope=str(reading.scope) if reading.scope is not None else "",
        idle_watts=reading.idle_watts,
        joules_above_idle=reading.joules_above_idle,
        samples=reading.samples,
        lag_ms=reading.lag_ms,
        power_mode=reading.power_mode,
        note=reading.note,
    )
    return stats, window.note


def _joules(reading: EnergyReading | None) -> float | None:
    return None if reading is None else reading.joules
