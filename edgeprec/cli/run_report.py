"""From a session and its generations to a report: what the page needs of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeprec.cli.report import Report, ReportRun
from edgeprec.config import ControllerConfig, GenerationConfig
from edgeprec.runtime.reply import Reply

if TYPE_CHECKING:
    from edgeprec.calibration import Calibration
    from edgeprec.runtime.generation import Generation
    from edgeprec.runtime.session import Session

__all__ = ["report_of", "run_of", "thresholds_of"]


def run_of(generation: Generation, *, prompt: str, baseline: Reply | None = None) -> ReportRun:
    """Return a finished generation as a section of a report."""
    return ReportRun(
        name=f"Mode {generation.config.mode}, drafts by {generation.reply.stats.drafter}",
        prompt=prompt,
        reply=generation.reply,
        events=generation.events,
        rounds=generation.rounds,
        baseline=baseline,
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
    thresholds = thresholds_of(config.controller, session.calibration)
    return Report(title=title, facts=facts, num_layers=info.num_layers, thresholds=thresholds, runs=runs, notes=notes)


def thresholds_of(config: ControllerConfig, calibration: Calibration | None) -> tuple[float, float] | None:
    """Return theta_low and theta_high in bits: as set, else as calibrated, else None."""
    low = config.theta_low_bits
    high = config.theta_high_bits
    if calibration is not None:
        low = calibration.theta_low_bits if low is None else low
        high = calibration.theta_high_bits if high is None else high
    return None if low is None or high is None else (low, high)
