"""The statistics of a reply in words: one line under the text."""

from __future__ import annotations

from collections.abc import Iterator

from edgeprec.runtime.reply import EnergyStats, FinishReason, LevelStats, Reply, Stats

__all__ = [
    "energy_circumstances",
    "energy_details",
    "energy_in_words",
    "stats_line",
    "stats_lines",
    "worthy_phases",
]

_WHOLE = 0.995  # a coverage that rounds to all of the time
_NEGLIGIBLE = 1e-3  # of all joules: the moment between the last pass and the end is a phase too

_ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: "length reached",
    FinishReason.CANCELLED: "interrupted",
    FinishReason.ERROR: "broke off",
}


def stats_line(reply: Reply) -> str:
    """Return what one generation took, only what was measured."""
    stats = reply.stats
    parts = [f"{stats.new_tokens} tokens"]
    parts += [f"{stats.tokens_per_s:.1f} tokens/s"] if stats.tokens_per_s is not None else []
    levels = " through INT4" if stats.three_level is not None else ""
    parts += [f"{reply.mode}, drafts by {stats.drafter}{levels}" if stats.drafted else str(reply.mode)]
    parts += _shares(stats)
    parts += [energy_in_words(stats) if stats.energy is None else _joules(stats.energy)]
    parts += [_ENDINGS[reply.finish_reason]] if _ENDINGS[reply.finish_reason] else []
    return " · ".join(parts)


def stats_lines(reply: Reply) -> str:
    """Return the line, under it where the energy went or why none was measured, and what did not run as asked."""
    details = energy_details(reply.stats)
    lines = [stats_line(reply), *([] if details is None else [details])]
    return "\n".join([*lines, *(f"note: {text}" for text in reply.stats.fallbacks)])


def _shares(stats: Stats) -> list[str]:
    parts = []
    if stats.acceptance_rate is not None:
        parts.append(f"{stats.acceptance_rate:.0%} of {stats.drafted} drafted accepted")
    if stats.three_level is not None:
        parts += _by_level(stats.three_level)
    if stats.int4_layer_share is not None:
        parts.append(f"{stats.int4_layer_share:.0%} of layer passes in INT4")
    return parts


def _by_level(levels: LevelStats) -> Iterator[str]:
    """Yield what the INT4 target accepted, and how often FP16 was asked directly instead."""
    if levels.model_acceptance_rate is not None:
        yield f"INT4 accepted {levels.model_acceptance_rate:.0%} of {levels.model_drafted} from the draft model"
    if levels.direct_rounds:
        yield f"{levels.direct_rounds} of {levels.rounds + levels.direct_rounds} rounds in two levels"


def energy_in_words(stats: Stats) -> str:
    """Return joules and their source, or why there are none, without what each sensor answered."""
    if stats.energy is None:
        return f"energy not measured: {_reason(stats).partition(' (')[0]}"
    energy = stats.energy
    part = "" if energy.is_total else ", part of the device only"
    return f"{_joules(energy)} ({energy.source} {energy.rail}{part})"


def energy_details(stats: Stats) -> str | None:
    """Return joules by phase and how they were measured, or the whole reason where a line has only its beginning."""
    if stats.energy is None:
        return f"energy not measured: {_reason(stats)}" if " (" in _reason(stats) else None
    phases = [f"{phase} {joules:.3g} J" for phase, joules in worthy_phases(stats.energy).items() if joules is not None]
    return f"energy: {', '.join(phases) or 'no phase is known'}; {energy_circumstances(stats.energy)}"


def worthy_phases(energy: EnergyStats) -> dict[str, float | None]:
    """Return the joules of the phases without those that are nothing beside the whole; None = not measured."""
    least = _NEGLIGIBLE * abs(energy.joules)
    phases = energy.by_phase.items()
    return {
        phase: joules
        for phase, joules in phases
        if (phase != "idle" if joules is None else abs(joules) >= least)  # hardly ever is there any idle time
    }


def energy_circumstances(energy: EnergyStats) -> str:
    """Return what was measured, in which power mode, how much of the time, and what happened on the way."""
    about = [
        f"{energy.source} {energy.rail}{'' if energy.is_total else ', part of the device only'}",
        None if energy.power_mode is None else f"power mode {energy.power_mode}",
        _above_idle(energy),
        None if energy.coverage >= _WHOLE else f"{energy.coverage:.0%} of the time seen",
        energy.note,
    ]
    return "; ".join(text for text in about if text)


def _above_idle(energy: EnergyStats) -> str | None:
    if energy.idle_watts is None or energy.joules_above_idle is None:
        return None
    return f"{energy.joules_above_idle:.3g} J above {energy.idle_watts:.3g} W at rest"


def _reason(stats: Stats) -> str:
    return stats.energy_note or "no reason given"


def _joules(energy: EnergyStats) -> str:
    per_token = "" if energy.joules_per_token is None else f", {energy.joules_per_token:.3g} J/token"
    return f"{energy.joules:.3g} J ± {energy.plus_minus_joules:.2g}{per_token}"
