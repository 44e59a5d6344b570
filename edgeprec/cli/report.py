"""The HTML report of one or more runs: one file, no script, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from edgeprec.cli.comparison import Comparison, compare, overall_speedup
from edgeprec.cli.energy_panel import EnergyPanel, draw_energy
from edgeprec.cli.power_points import PowerPoint
from edgeprec.cli.stats import energy_in_words
from edgeprec.cli.timeline import Timeline, describe, draw_timeline
from edgeprec.runtime.reply import Reply, RoundRecord, Stats, TokenEvent, TokenSource

__all__ = ["Report", "ReportRun", "render_report"]


_MISSING = "n/a"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRun:
    """One prompt's run. ``baseline`` is plain FP16 on the same prompt in the same session."""

    name: str
    prompt: str
    reply: Reply
    events: Sequence[TokenEvent]
    rounds: Sequence[RoundRecord]
    thresholds: tuple[float, float] | None = None  # theta_low and theta_high in bits, as they were at the end
    baseline: Reply | None = None
    power: Sequence[PowerPoint] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the page says. ``facts`` are name and value of what the runs have in common."""

    title: str
    facts: Sequence[tuple[str, str]]
    num_layers: int
    runs: Sequence[ReportRun]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One run, ready for the template."""

    run: ReportRun
    spans: tuple[tuple[str, str, str], ...]  # kind, text, title
    kinds: tuple[str, ...]
    timeline: Timeline
    energy: EnergyPanel
    tiles: tuple[tuple[str, str, str], ...]  # value, unit or name, remark
    rows: tuple[tuple[str, str], ...]
    comparison: Comparison | None


def render_report(report: Report) -> str:
    """Return the page."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = [_section(run, report) for run in report.runs]
    return environment.get_template("report.html").render(
        report=report,
        sections=sections,
        headline=_headline(sections),
        version=version("edgeprec"),
    )


def _section(run: ReportRun, report: Report) -> _Section:
    comparison = compare(run.reply, run.baseline) if run.baseline is not None else None
    return _Section(
        run=run,
        spans=tuple((event.source.value, event.text, describe(event)) for event in run.events if event.text),
        kinds=tuple(kind.value for kind in TokenSource if any(event.source is kind for event in run.events)),
        timeline=draw_timeline(run.events, run.rounds, num_layers=report.num_layers, thresholds=run.thresholds),
        energy=draw_energy(run.reply, run.rounds, run.power),
        tiles=_tiles(run.reply, comparison),
        rows=_rows(run.reply),
        comparison=comparison,
    )


def _tiles(reply: Reply, comparison: Comparison | None) -> tuple[tuple[str, str, str], ...]:
    stats = reply.stats
    tiles = [(_number(stats.tokens_per_s, ".1f"), "tokens/s", f"{stats.new_tokens} tokens in {stats.decode_s:.2f} s")]
    if comparison is not None and comparison.speedup is not None:
        tiles.append(
            (f"{comparison.speedup:.2f}x", "vs FP16", f"plain FP16 {comparison.baseline_tokens_per_s:.1f} tokens/s")
        )
    if stats.drafted:
        tiles.append((_percent(stats.acceptance_rate), "accepted", f"{stats.accepted} of {stats.drafted} drafted"))
    tiles.append((_percent(stats.int4_layer_share), "in INT4", "of all layer passes"))
    energy = stats.energy
    if energy is not None and energy.joules_per_token is not None:
        tiles.append((f"{energy.joules_per_token:.3g}", "J/token", f"{energy.source} {energy.rail}"))
    else:
        tiles.append((_MISSING, "J/token", energy_in_words(stats)))
    return tuple(tiles)


def _levels(stats: Stats) -> list[tuple[str, str]]:
    found = stats.three_level
    if found is None:
        return []
    return [
        ("INT4 target accepted", f"{_percent(found.model_acceptance_rate)} of {found.model_drafted} drafted for it"),
        ("FP16 accepted of INT4", f"{_percent(found.int4_acceptance_rate)} of {found.int4_drafted}"),
        ("rounds in three levels", f"{found.rounds}, in two {found.direct_rounds}"),
    ]


def _rows(reply: Reply) -> tuple[tuple[str, str], ...]:
    stats = reply.stats
    rows = [
        ("mode", str(reply.mode)),
        ("drafter", stats.drafter),
        ("prompt tokens", str(stats.prompt_tokens)),
        ("new tokens", f"{stats.new_tokens}, ended by {reply.finish_reason}"),
        ("prefill", f"{stats.prefill_s:.3f} s"),
        ("decode", f"{stats.decode_s:.3f} s"),
        ("rounds", f"{stats.rounds}, {stats.verify_rounds} verified"),
        ("mean draft length", _number(stats.mean_draft_length, ".2f")),
        *_levels(stats),
        ("INT4 layer share, draft", _percent(stats.draft_int4_layer_share)),
        ("INT4 layer share, target", _percent(stats.target_int4_layer_share)),
        ("bits read per weight", _number(stats.bits_read_per_weight, ".2f")),
        ("energy", energy_in_words(stats)),
    ]
    rows += [(f"energy, {phase}", _joules(value)) for phase, value in _phases(reply)]
    rows += [("seed", str(stats.seed))] if stats.seed is not None else []
    return tuple(rows + [("note", text) for text in stats.fallbacks])


def _phases(reply: Reply) -> list[tuple[str, float | None]]:
    return list(reply.stats.energy.by_phase.items()) if reply.stats.energy is not None else []


def _joules(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g} J"


def _number(value: float | None, style: str) -> str:
    return _MISSING if value is None else format(value, style)


def _percent(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.0%}"


def _headline(sections: Sequence[_Section]) -> str:
    """Return the outcome in one sentence, from what was compared; empty where nothing was."""
    pairs = [(section.run.reply, section.run.baseline) for section in sections if section.run.baseline is not None]
    if not pairs:
        return ""
    speedup = overall_speedup(pairs)
    speed = "" if speedup is None else f", at {speedup:.2f} times its speed"
    differing = [section for section in sections if section.comparison and not section.comparison.is_identical]
    if differing:
        return f"{len(differing)} of {len(pairs)} replies differ from plain FP16{speed}."
    tokens = sum(len(reply.tokens) for reply, _ in pairs)
    return f"The same {tokens} tokens as plain FP16{speed}."
