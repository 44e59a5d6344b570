"""The energy of one repeat of a benchmark, from the meter's window around it, and what a case adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.window import Window

__all__ = ["BETWEEN", "DECODING", "RepeatEnergy", "decoding_joules", "repeat_energy", "summed_phases"]

BETWEEN = "between"  # from the end of a generation to the start of the next
DECODING = ("draft", "verify", "idle", "decode")  # the phases after prefill; a server shows only ``decode``


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatEnergy:
    """A reading, its joules by phase (None = not measured), and the tokens they are divided by."""

    reading: EnergyReading
    by_phase: Mapping[str, float | None]
    tokens: int

    @property
    def joules_per_token(self) -> float | None:
        """Return gross joules, idle included, by the tokens that count."""
        return self._per_token(self.reading.joules)

    @property
    def joules_per_token_above_idle(self) -> float | None:
        """Return the same with the idle baseline subtracted, None without one."""
        return self._per_token(self.reading.joules_above_idle)

    @property
    def decode_joules_per_token(self) -> float | None:
        """Return the joules of everything after prefill by the tokens, None where a phase of it is not known."""
        return self._per_token(decoding_joules(self.by_phase))

    def to_json(self) -> dict[str, Any]:
        """Return the reading with its figures a token."""
        return {
            **self.reading.to_json(),
            "by_phase": dict(self.by_phase),
            "tokens": self.tokens,
            "joules_per_token": self.joules_per_token,
            "joules_per_token_above_idle": self.joules_per_token_above_idle,
            "decode_joules_per_token": self.decode_joules_per_token,
        }

    def _per_token(self, joules: float | None) -> float | None:
        return None if joules is None or not self.tokens else joules / self.tokens


def decoding_joules(by_phase: Mapping[str, float | None]) -> float | None:
    """Return the sum of the phases after prefill; None where there is none, or one but ``idle`` is not measured."""
    phases = {phase: joules for phase, joules in by_phase.items() if phase in DECODING}
    known = [joules for joules in phases.values() if joules is not None]
    missing = [phase for phase, joules in phases.items() if joules is None and phase != "idle"]
    return sum(known) if known and not missing else None


def repeat_energy(window: object, *, tokens: int, note: str | None) -> tuple[RepeatEnergy | None, str | None]:
    """Return the energy of a closed window, or None and the reason; ``note`` is the reason where nothing measures."""
    if not isinstance(window, Window):
        return None, note or "not measured"
    if window.reading is None:
        return None, window.note or "not measured"
    by_phase = {phase: None if found is None else found.joules for phase, found in window.by_phase.items()}
    return RepeatEnergy(reading=window.reading, by_phase=by_phase, tokens=tokens), window.note


def summed_phases(energies: Sequence[RepeatEnergy]) -> dict[str, float | None]:
    """Return the joules of each phase over all repeats; a phase not measured in one of them is None."""
    names = dict.fromkeys(phase for energy in energies for phase in energy.by_phase)
    return {name: _sum([energy.by_phase[name] for energy in energies if name in energy.by_phase]) for name in names}


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
