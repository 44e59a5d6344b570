"""Replies that came one after another, put together as those of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeprec.runtime.batch_reply import BatchReply, batch_stats
from edgeprec.runtime.reply import EnergyStats, Reply

__all__ = ["in_turn", "noted"]


def noted(reply: Reply, notes: Sequence[str]) -> Reply:
    """Return a reply with further fallbacks."""
    return replace(reply, stats=replace(reply.stats, fallbacks=(*reply.stats.fallbacks, *notes)))


def in_turn(replies: Sequence[Reply]) -> BatchReply:
    """Return replies that came one after another as those of a batch, with the sums of their times and joules."""
    energy, energy_note = _summed(replies)
    fallbacks = [text for reply in replies for text in reply.stats.fallbacks]
    stats = batch_stats(replies, at_once=1, fallbacks=fallbacks, energy=energy, energy_note=energy_note)
    return BatchReply(tuple(replies), stats)


def _summed(replies: Sequence[Reply]) -> tuple[EnergyStats | None, str | None]:
    """Return the energy of replies that came one after another, None where one of them has none."""
    found = [reply.stats.energy for reply in replies]
    known = [energy for energy in found if energy is not None]
    if len(known) < len(found) or not known:
        return None, next((reply.stats.energy_note for reply in replies if reply.stats.energy is None), None)
    joules, tokens = sum(energy.joules for energy in known), sum(reply.stats.new_tokens for reply in replies)
    above = [energy.joules_above_idle for energy in known if energy.joules_above_idle is not None]
    phases = dict.fromkeys(phase for energy in known for phase in energy.by_phase)
    by_phase: dict[str, float | None] = {}
    for phase in phases:
        parts = [energy.by_phase[phase] for energy in known if phase in energy.by_phase]
        by_phase[phase] = None if None in parts else sum(part for part in parts if part is not None)
    total = replace(
        known[0],
        joules=joules,
        joules_per_token=joules / tokens if tokens else None,
        by_phase=by_phase,
        plus_minus_joules=sum(energy.plus_minus_joules for energy in known),
        joules_above_idle=sum(above) if len(above) == len(known) else None,
        coverage=min(energy.coverage for energy in known),
        samples=sum(energy.samples for energy in known),
        is_total=all(energy.is_total for energy in known),
    )
    return total, next((reply.stats.energy_note for reply in replies if reply.stats.energy_note), None)
