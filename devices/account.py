"""From the samples of a window to readings of its total, its rails and its phases: pure, no clock, no sensor read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgeprec.devices.account_notes import join, rail_notes, why_nothing
from edgeprec.devices.curve import Span
from edgeprec.devices.integrate import Series
from edgeprec.devices.rail_energy import RailEnergy, Timing, measure_rail, rail_series
from edgeprec.devices.reading import EnergyReading, Method
from edgeprec.devices.sensor import Quantity, Rail, Sample, Total

__all__ = ["Account", "Answer", "Circumstances"]

_FEW_STEPS = 20
_FEW_LAGS = 10


class Answer(NamedTuple):
    """A reading and what to know about it, or None and why."""

    reading: EnergyReading | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What all readings of one window share."""

    source: str
    rails: tuple[Rail, ...]
    total: Total | None
    total_note: str | None
    period_ms: float
    sensor_period_ms: float
    lag_ms: float | None
    power_mode: str | None = None
    idle_watts: float | None = None
    idle_note: str | None = None
    ended_ns: int | None = None
    ended_note: str | None = None

    @property
    def timing(self) -> Timing:
        """Return the times of the measurement in nanoseconds."""
        return Timing(
            period_ns=round(self.period_ms * 1e6),
            sensor_period_ns=round(self.sensor_period_ms * 1e6),
            lag_ns=round((self.lag_ms or 0.0) * 1e6),
        )

    def rails_of_total(self) -> tuple[Rail, ...]:
        """Return the rails to sum: those of the total, else the only rail that lies in no other, else none."""
        if self.total is not None:
            return tuple(rail for rail in self.rails if rail.id in self.total.rail_ids)
        outermost = tuple(rail for rail in self.rails if rail.parent is None)
        return outermost if len(outermost) == 1 else ()


class Account:
    """The samples around one window and the readings that follow from them."""

    def __init__(self, samples: Sequence[Sample], window: Span, circumstances: Circumstances) -> None:
        self._samples = samples
        self._window = window
        self._about = circumstances
        self._timing = circumstances.timing
        self._series: dict[str, Series] = {}

    def total(self) -> Answer:
        """Return the energy of the whole window. Without a sample, or without a step of the counter, there is none."""
        rails = self._about.rails_of_total()
        if not rails:
            return Answer(None, self._why_no_total())
        return self._sum(rails, [self._window], is_phase=False)

    def by_rail(self) -> dict[str, Answer]:
        """Return the energy of each rail over the whole window, by the rail's id."""
        return {rail.id: self._sum((rail,), [self._window], is_phase=False) for rail in self._about.rails}

    def phase(self, spans: Sequence[Span]) -> Answer:
        """Return the energy of the total over all stretches of one phase, interpolated on the curve of the window."""
        rails = self._about.rails_of_total()
        if not rails:
            return Answer(None, self._why_no_total())
        return self._sum(rails, spans, is_phase=True)

    def power_trace(self) -> list[tuple[int, float | None]]:
        """Return the power of the total in mW at each sample of the window, None where a rail of it was not seen."""
        curves = [self._rail_series(rail).curve for rail in self._about.rails_of_total()]
        times = [s.time_ns for s in self._samples if self._window.start_ns <= s.time_ns <= self._window.end_ns]
        trace: list[tuple[int, float | None]] = []
        for time_ns in times:
            powers = [curve.power_mw(time_ns) for curve in curves]
            known = [power for power in powers if power is not None]
            trace.append((time_ns, sum(known) if known and len(known) == len(powers) else None))
        return trace

    def rail_traces(self) -> list[tuple[int, dict[str, float | None]]]:
        """Return the power of each rail in mW, by its label, at each sample from the start to the end of the window.

        The readings at both ends, taken just outside of it, are the first and the last. None = not seen.
        """
        names = _distinct_labels(self._about.rails)
        return [
            (sample.time_ns, {names[rail.id]: self._power_mw(rail, sample) for rail in self._about.rails})
            for sample in self._from_end_to_end()
        ]

    def _from_end_to_end(self) -> Sequence[Sample]:
        times = [sample.time_ns for sample in self._samples]
        first = max(bisect_right(times, self._window.start_ns) - 1, 0)
        return self._samples[first : bisect_left(times, self._window.end_ns) + 1]

    def _power_mw(self, rail: Rail, sample: Sample) -> float | None:
        if rail.quantity is Quantity.POWER:
            return sample.values.get(rail.id)
        return self._rail_series(rail).curve.power_mw(sample.time_ns)

    def _why_no_total(self) -> str:
        if self._about.total_note is not None:
            return self._about.total_note
        return f"no total is known for the rails of {self._about.source}"

    def _rail_series(self, rail: Rail) -> Series:
        if rail.id not in self._series:
            self._series[rail.id] = rail_series(rail, self._samples, self._timing)
        return self._series[rail.id]

    def _has_news(self, rail: Rail) -> bool:
        """Return whether the counter stepped inside the window; momentary power is always news."""
        if rail.quantity is Quantity.POWER:
            return True
        return any(
            self._window.start_ns <= step_ns <= self._window.end_ns for step_ns in self._rail_series(rail).news_ns
        )

    def _sum(self, rails: Sequence[Rail], spans: Sequence[Span], *, is_phase: bool) -> Answer:
        measured: list[tuple[Rail, RailEnergy]] = []
        missing: list[str] = []
        for rail in rails:
            energy = measure_rail(rail, self._rail_series(rail), spans, self._timing)
            if energy.covered_ns == 0 or not self._has_news(rail):
                missing.append(why_nothing(rail, self._samples, spans, self._timing, self._about.ended_note))
            else:
                measured.append((rail, energy))
        if not measured:
            return Answer(None, join(missing))
        reading = self._reading(measured, missing, spans, is_phase=is_phase)
        return Answer(reading, reading.note)

    def _reading(
        self,
        measured: Sequence[tuple[Rail, RailEnergy]],
        missing: Sequence[str],
        spans: Sequence[Span],
        *,
        is_phase: bool,
    ) -> EnergyReading:
        about, total = self._about, self._about.total
        energies = [energy for _, energy in measured]
        rails = [rail for rail, _ in measured]
        length_ns = sum(span.length_ns for span in spans)
        covered_ns = min(energy.covered_ns for energy in energies)
        joules = sum(energy.energy_mj for energy in energies) / 1e3
        is_total = total is not None and not total.is_partial and {r.id for r in rails} == set(total.rail_ids)
        is_like_idle = about.idle_watts is not None and rails == list(about.rails_of_total())
        idle_joules = (about.idle_watts or 0.0) * covered_ns / 1e9
        return EnergyReading(
            joules=joules,
            source=about.source,
            rails=tuple(rail.label for rail in rails),
            is_total=is_total,
            scope=None if total is None or not set(total.rail_ids) & {r.id for r in rails} else total.scope,
            method=_method(rails),
            seconds=length_ns / 1e9,
            samples=min(energy.samples for energy in energies),
            period_ms=about.period_ms,
            lag_ms=about.lag_ms,
            coverage=covered_ns / length_ns,
            plus_minus_joules=sum(energy.plus_minus_mj for energy in energies) / 1e3,
            resets=sum(energy.resets for energy in energies),
            negatives=sum(energy.negatives for energy in energies),
            power_mode=about.power_mode,
            idle_watts=about.idle_watts if is_like_idle else None,
            joules_above_idle=joules - idle_joules if is_like_idle else None,
            interpolated=is_phase or any(self._is_short(rail, length_ns) for rail in rails),
            is_shared=total is not None and total.is_shared,
            note=join([*missing, *self._notes(measured, spans)]),
        )

    def _notes(self, measured: Sequence[tuple[Rail, RailEnergy]], spans: Sequence[Span]) -> list[str]:
        about = self._about
        total = about.total
        assumption = f"the total is assumed: {total.evidence}" if total is not None and total.is_assumed else None
        notes = [about.total_note or assumption, about.idle_note]
        if about.ended_ns is not None and about.ended_ns < spans[-1].end_ns:
            after_s = max(0, about.ended_ns - self._window.start_ns) / 1e9
            notes.append(f"the sensor ended {after_s:.1f} s into the window: {about.ended_note}")
        for rail, energy in measured:
            notes += rail_notes(rail, energy, self._rail_series(rail), self._samples, spans)
        return [note for note in notes if note]

    def _is_short(self, rail: Rail, length_ns: int) -> bool:
        if length_ns < _FEW_LAGS * self._timing.lag_ns:
            return True
        if rail.quantity is Quantity.ENERGY:
            return length_ns < _FEW_STEPS * self._timing.step_ns(rail)
        return length_ns < self._timing.period_ns


def _method(rails: Sequence[Rail]) -> Method:
    quantities = {rail.quantity for rail in rails}
    if len(quantities) > 1:
        return Method.MIXED
    return Method.COUNTER if Quantity.ENERGY in quantities else Method.INTEGRATED_POWER


def _distinct_labels(rails: Sequence[Rail]) -> dict[str, str]:
    """Return id -> label, with the id beside a label that several rails share."""
    labels = [rail.label for rail in rails]
    return {rail.id: rail.label if labels.count(rail.label) == 1 else f"{rail.label} ({rail.id})" for rail in rails}
