"""The decoding benchmark's tables in Markdown: speed and energy of every way, and what drafting did."""

from __future__ import annotations

from collections.abc import Mapping

from decode_record import Spread, Summary

from edgeprec.prompts import PromptKind

__all__ = ["drafting_table", "speed_table"]


def speed_table(summaries: Mapping[str, Summary], *, read_gb_per_s: float | None) -> str:
    """Return one line per way, with ratios to ``fp16``; middle halves over prompts in brackets."""
    lines = [
        "| decoding | tokens/s | over fp16 | J/token | over fp16 | above idle | GB/s | of read | identical |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    base = summaries["fp16"]
    for name, summary in summaries.items():
        joules, base_joules = summary.joules_per_token, base.joules_per_token
        cells = [
            name,
            f"{summary.tokens_per_s:.1f} {_range(summary.rate_spread, 1)}",
            f"{summary.tokens_per_s / base.tokens_per_s:.2f}x",
            "-" if joules is None else f"{joules:.3f} {_range(summary.joules_spread, 3)}",
            "-" if joules is None or base_joules is None else f"{joules / base_joules - 1.0:+.0%}",
            _number(summary.joules_above_idle_per_token, 3),
            f"{summary.gb_per_s:.0f}",
            "-" if read_gb_per_s is None else f"{summary.gb_per_s / read_gb_per_s:.2f}",
            f"{summary.identical_to(base.records)} of {len(summary.records)}",
        ]
        lines.append(_row(cells))
    return "\n".join(lines)


def drafting_table(summaries: Mapping[str, Summary]) -> str:
    """Return one line per way that drafted: acceptance by kind of text, a round's tokens and times, joules by phase."""
    kinds = list(PromptKind)
    head = ["decoding", "acceptance", *map(str, kinds), "INT4 accepts", "tokens a round", "drafted a round"]
    head += ["draft ms", "verify ms", "draft J/token", "verify J/token"]
    lines = [_row(head), "|---" * len(head) + "|"]
    for name, summary in summaries.items():
        if summary.acceptance() is None:
            continue
        cells = [
            name,
            *(_number(summary.acceptance(kind), 2) for kind in (None, *kinds)),
            _number(summary.level_acceptance, 2),
            f"{summary.tokens_a_round:.2f}",
            f"{summary.per_round('drafted'):.2f}",
            f"{1e3 * summary.per_round('draft_s'):.2f}",
            f"{1e3 * summary.per_round('verify_s'):.2f}",
            _number(summary.phase_joules_per_token("draft"), 3),
            _number(summary.phase_joules_per_token("verify"), 3),
        ]
        lines.append(_row(cells))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(spread: Spread | None, digits: int) -> str:
    return "" if spread is None else f"({spread.low:.{digits}f}-{spread.high:.{digits}f})"
