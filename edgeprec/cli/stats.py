"""The statistics of a reply in words: one line under the text."""

from __future__ import annotations

from edgeprec.runtime.reply import EnergyStats, FinishReason, Reply, Stats

__all__ = ["energy_in_words", "stats_line"]

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
    parts += [f"{reply.mode}, drafts by {stats.drafter}" if stats.drafted else str(reply.mode)]
    parts += _shares(stats)
    parts += [energy_in_words(stats)]
    parts += [_ENDINGS[reply.finish_reason]] if _ENDINGS[reply.finish_reason] else []
    return " · ".join(parts)


def _shares(stats: Stats) -> list[str]:
    parts = []
    if stats.acceptance_rate is not None:
        parts.append(f"{stats.acceptance_rate:.0%} of {stats.drafted} drafted accepted")
    if stats.int4_layer_share is not None:
        parts.append(f"{stats.int4_layer_share:.0%} of layer passes in INT4")
    return parts


def energy_in_words(stats: Stats) -> str:
    """Return joules and their source, or why there are none; what each sensor answered is left to the JSON."""
    if stats.energy is None:
        return f"energy not measured: {(stats.energy_note or 'no reason given').partition(' (')[0]}"
    return _joules(stats.energy)


def _joules(energy: EnergyStats) -> str:
    per_token = "" if energy.joules_per_token is None else f", {energy.joules_per_token:.3g} J/token"
    part = "" if energy.is_total else ", part of the device only"
    return f"{energy.joules:.3g} J ± {energy.plus_minus_joules:.2g}{per_token} ({energy.source} {energy.rail}{part})"
