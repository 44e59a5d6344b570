"""From a session and its generations to a report: what the page needs of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeprec.cli.power_points import power_points
from edgeprec.cli.report import Report, ReportRun
from edgeprec.config import GenerationConfig
from edgeprec.runtime.reply import Reply

if TYPE_CHECKING:
    from edgeprec.runtime.generation import Generation
    from edgeprec.runtime.session import Session

__all__ = ["report_of", "run_of"]


def run_of(generation: Generation, *, prompt: str, baseline: Reply | None = None) -> ReportRun:
    """Return a finished generation as a section of a report."""
    band = generation.controller.band
    return ReportRun(
        name=f"Mode {generation.config.mode}, drafts by {generation.reply.stats.drafter}",
        prompt=prompt,
        reply=generation.reply,
        events=generation.events,
        rounds=generation.rounds,
        thresholds=(band.theta_low_bits, band.theta_high_bits),
        baseline=baseline,
        power=power_points(generation),
    )


def report_of(
    session: Session, runs: Sequence[ReportRun], *, title: str, config: GenerationConfig, notes: Sequence[str] = ()
) -> Report:
    """Return the report of runs in one session with one configuration."""
    info = session.info
    temperature = config.sampling.temperature
    facts = [
        ("engine", f"{info.name} on {info.device}"),
        ("layers", str(info.num_layers)),
        ("context", f"{info.context_tokens} tokens"),
        ("sampling", "greedy" if temperature == 0 else f"temperature {temperature:g}"),
    ]
    return Report(title=title, facts=facts, num_layers=info.num_layers, runs=runs, notes=notes)
