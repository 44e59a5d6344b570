"""The sentences that go with a reading: why a rail is missing, and what happened to one that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgeprec.devices.curve import Span
from edgeprec.devices.integrate import Series
from edgeprec.devices.rail_energy import RailEnergy, Timing, refusals
from edgeprec.devices.sensor import Quantity, Rail, Sample

__all__ = ["join", "rail_notes", "why_nothing"]

_STUCK_STEPS = 5


def join(notes: Iterable[str]) -> str | None:
    """Return the notes as one line without repetitions, None when there are none."""
    return "; ".join(dict.fromkeys(notes)) or None


def why_nothing(
    rail: Rail, samples: Sequence[Sample], spans: Sequence[Span], timing: Timing, ended_note: str | None
) -> str:
    """Return why a rail has no energy over the spans."""
    reasons = refusals(rail, [s for s in samples if spans and spans[0].start_ns <= s.time_ns]) or refusals(
        rail, samples
    )
    if reasons:
        return f"{rail.label} not measured: {reasons.most_common(1)[0][0]}"
    if ended_note is not None:
        return f"{rail.label} not measured: the sensor ended: {ended_note}"
    length_s = sum(span.length_ns for span in spans) / 1e9
    if rail.quantity is Quantity.POWER:
        period_ms = timing.period_ns / 1e6
        if length_s * 1e3 > 2 * period_ms:
            return (
                f"{rail.label} not measured: its samples in {length_s:.3f} s lie more than {2 * period_ms:g} ms apart"
            )
        return f"too short: no sample of {rail.label} in {length_s:.3f} s, read every {period_ms:g} ms"
    step_ms = timing.step_ns(rail) / 1e6
    if length_s * 1e3 < _STUCK_STEPS * step_ms:
        return f"too short: the counter of {rail.label} did not step in {length_s:.3f} s, it steps every {step_ms:g} ms"
    return f"{rail.label} not measured: its counter did not move in {length_s:.1f} s"


def rail_notes(
    rail: Rail, energy: RailEnergy, series: Series, samples: Sequence[Sample], spans: Sequence[Span]
) -> list[str]:
    """Return what to know about a measured rail: gaps, bridged pauses, restarts, negative samples, failed reads."""
    notes = []
    uncovered_s = (sum(span.length_ns for span in spans) - energy.covered_ns) / 1e9
    if energy.gaps:
        notes.append(f"{_count(energy.gaps, 'gap')} in {rail.label}: {uncovered_s:.2f} s not measured and not bridged")
    bridged = [gap for gap in series.bridged if any(_overlap(gap, span) for span in spans)]
    if bridged:
        longest_s = max(gap.length_ns for gap in bridged) / 1e9
        pauses = _count(len(bridged), "pause")
        notes.append(f"{pauses} in reading {rail.label}, up to {longest_s:.2f} s, bridged: its counter went on")
    if energy.resets:
        notes.append(
            f"the counter of {rail.label} began anew {_count(energy.resets, 'time')}: that interval is dropped"
        )
    if energy.negatives:
        notes.append(f"{_count(energy.negatives, 'sample')} of {rail.label} below zero, kept")
    inside = [s for s in samples if spans[0].start_ns <= s.time_ns <= spans[-1].end_ns]
    for reason, count in refusals(rail, inside).most_common(1):
        notes.append(f"{rail.label} failed {_count(count, 'time')}: {reason}")
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _overlap(left: Span, right: Span) -> bool:
    return left.start_ns < right.end_ns and right.start_ns < left.end_ns
