"""The demo's work: the bundle, then two prompts in mode ``exact`` and in plain FP16 of the same session."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.comparison import compare, overall_speedup
from edgeprec.cli.demo_model import BUNDLE_NAME, DOWNLOAD_MB, LICENSE_NOTE, fetch_checkpoint
from edgeprec.cli.follow import follow
from edgeprec.cli.output_file import write_whole
from edgeprec.cli.printer import TextPrinter
from edgeprec.cli.progress import progress_bars, working
from edgeprec.cli.render import legend
from edgeprec.cli.report import ReportRun, render_report
from edgeprec.cli.run_report import report_of, run_of
from edgeprec.cli.shipped_draft import describe_drafts, is_made_with, shipped_draft
from edgeprec.cli.stats import energy_details, stats_line
from edgeprec.config import GenerationConfig, Mode
from edgeprec.extras import require_export_packages
from edgeprec.runtime.reply import FinishReason, Reply, TokenSource

if TYPE_CHECKING:
    from edgeprec.runtime.session import Session

__all__ = ["PROMPTS", "DemoResult", "prepare_bundle", "run_demo"]

PROMPTS = (
    ("A question", "Explain in a few sentences why the sea has tides."),
    ("A story", "Write a short story about a lighthouse keeper who finds a message in a bottle."),
)
_WARM_UP_TOKENS = 8


def prepare_bundle(cache: Path, *, is_quiet: bool) -> Path:
    """Return the demo bundle in ``cache``; fetch and export what is not there yet, with the draft that ships.

    A bundle that an earlier version made with another draft is made again.

    Raises:
        EngineError: the model is not in the cache and cannot be downloaded.
    """
    bundle, draft = cache / BUNDLE_NAME, shipped_draft()
    if bundle.is_dir():
        if is_made_with(bundle, draft):
            return bundle
        shutil.rmtree(bundle)
    with working(f"fetching the model, {DOWNLOAD_MB} MB", is_quiet=is_quiet):
        checkpoint = fetch_checkpoint(cache)
    require_export_packages()
    from edgeprec.api import export_bundle

    with progress_bars(is_quiet=is_quiet) as progress:
        return export_bundle(
            checkpoint,
            bundle,
            draft="self" if draft is None else str(draft),
            resume=bundle.with_name(f"{bundle.name}.partial").exists(),
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The runs, each with its FP16 baseline."""

    runs: Sequence[ReportRun]
    config: GenerationConfig

    @property
    def pairs(self) -> list[tuple[Reply, Reply]]:
        """Return reply and baseline of every run."""
        return [(run.reply, run.baseline) for run in self.runs if run.baseline is not None]

    @property
    def summary(self) -> str:
        """Return the outcome in one sentence."""
        verdicts = {compare(reply, baseline).is_identical for reply, baseline in self.pairs}
        tokens = sum(len(reply.tokens) for reply, _ in self.pairs)
        same = f"all {tokens} tokens are FP16's" if verdicts == {True} else "the tokens differ from FP16's"
        speedup = overall_speedup(self.pairs)
        return same if speedup is None else f"{same}, at {speedup:.2f} times the speed of plain FP16"

    @property
    def energy(self) -> str | None:
        """Return where the energy of the first reply went, or the whole reason why none was measured."""
        return next((energy_details(run.reply.stats) for run in self.runs), None)

    def write_report(self, session: Session, path: Path) -> None:
        """Write the HTML page."""
        report = report_of(
            session,
            self.runs,
            title="EdgePrec demo: SmolLM2-135M",
            config=self.config,
            notes=[LICENSE_NOTE, describe_drafts(shipped_draft())],
        )
        write_whole(path, render_report(report))

    def to_json(self) -> dict[str, Any]:
        """Return what ``demo --json`` prints."""
        return {
            "identical": all(compare(*pair).is_identical for pair in self.pairs),
            "speedup": overall_speedup(self.pairs),
            "runs": [
                {
                    "prompt": run.prompt,
                    "first_difference": compare(*pair).first_difference,
                    "speedup": compare(*pair).speedup,
                    "exact": pair[0].to_json(),
                    "fp16": pair[1].to_json(),
                }
                for run, pair in zip(self.runs, self.pairs, strict=True)
            ],
        }


def run_demo(session: Session, *, max_new_tokens: int, shows_text: bool) -> DemoResult:
    """Run every prompt twice, after a short warm-up of both modes."""
    exact = GenerationConfig(mode=Mode.EXACT, max_new_tokens=max_new_tokens)
    fp16 = replace(exact, mode=Mode.FP16)
    for config in (exact, fp16):
        session.generate(PROMPTS[0][1], replace(config, max_new_tokens=_WARM_UP_TOKENS), chat=True)
    if shows_text:
        click.echo(legend(TokenSource.DRAFT, TokenSource.TARGET))
    runs = [_run(session, name, prompt, exact, fp16, shows_text=shows_text) for name, prompt in PROMPTS]
    return DemoResult(runs, exact)


def _run(
    session: Session, name: str, prompt: str, exact: GenerationConfig, fp16: GenerationConfig, *, shows_text: bool
) -> ReportRun:
    generation = session.stream(prompt, exact, chat=True)
    if shows_text:
        click.echo(f"\n{click.style(prompt, dim=True)}")
        printer = TextPrinter()
        printer.finish(follow(generation, show=printer.show))
    else:
        follow(generation)
    if generation.reply.finish_reason is FinishReason.CANCELLED:
        raise KeyboardInterrupt
    baseline = session.generate(prompt, fp16, chat=True)
    if shows_text:
        click.echo(f"  {stats_line(generation.reply)}\n  {stats_line(baseline)}")
        click.echo(f"  {compare(generation.reply, baseline).verdict}")
    return replace(run_of(generation, prompt=prompt, baseline=baseline), name=name)
