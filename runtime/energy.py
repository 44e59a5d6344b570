"""From a meter's window to the energy a reply carries; a session without a sensor says why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self

from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.window import Window
from edgeprec.runtime.reply import EnergyStats

__all__ = ["PHASES", "NoWindow", "PhasePower", "energy_stats"]

_LOOK_AGAIN_NS = 2_000_000_000
PHASES = ("prefill", "draft", "verify", "decode", "idle")  # a batch's rounds are one phase: decode


class NoWindow:
    """Measures nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def mark(self, phase: str) -> None:
        """Nothing is measured."""


class PhasePower:
    """The mean power of each phase, as measured last: what a round's joules are told from.

    A round is shorter than any sensor's step, so its joules are its time at the power its phase has on average. While a
    generation runs its own window is looked at again every two seconds.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._mw: dict[str, float] = {}
        self._window: Window | None = None
        self._learned_ns = 0

    def follow(self, window: Window) -> None:
        """Learn from this window from now on."""
        self._window = window
        self._learned_ns = self._clock()

    def learn(self, phases: Mapping[str, EnergyReading | None]) -> None:
        """Take the readings of phases."""
        self._mw |= {phase: 1e3 * reading.watts for phase, reading in phases.items() if reading is not None}

    def millijoules(self, phase: str, duration_ns: int) -> float | None:
        """Return the energy of so much time in a phase, None while its power is not known."""
        self._look()
        power_mw = self._mw.get(phase)
        return None if power_mw is None else power_mw * duration_ns * 1e-9

    def _look(self) -> None:
        now_ns = self._clock()
        if self._window is not None and now_ns - self._learned_ns >= _LOOK_AGAIN_NS:
            self._learned_ns = now_ns
            self.learn(self._window.phases_so_far())


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
