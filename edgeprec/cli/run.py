"""``edgeprec run``: continue one prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.errors import INTERRUPTED
from edgeprec.cli.options import config_from, generation_options
from edgeprec.cli.parameter_types import FiniteRange
from edgeprec.cli.session_options import bundle_argument, open_session, replayed_file, session_options

if TYPE_CHECKING:
    from edgeprec.config import GenerationConfig
    from edgeprec.runtime.generation import Generation
    from edgeprec.runtime.reply import Reply
    from edgeprec.runtime.session import Session
    from edgeprec.runtime.trace import TraceWriter

__all__ = ["run_command"]


@click.command("run", short_help="Continue a prompt.")
@bundle_argument
@click.argument("source", required=False, type=click.Choice(["-"]), metavar="[-]")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt.")
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="A UTF-8 file with the prompt.")
@click.option("--chat", is_flag=True, help="Wrap the prompt in the model's chat template.")
@generation_options
@session_options
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Write every token and round.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a page that shows the run.")
@click.option(
    "--idle-baseline",
    type=FiniteRange(min=10.0, max=3600.0),
    metavar="SECONDS",
    help="Measure the power at rest first, to give the joules above it too; 10 is enough.",
)
@json_option
@quiet_option
@click.pass_context
def run_command(ctx: click.Context, /, **values: Any) -> None:
    """Continue a prompt with the model in BUNDLE; - reads the prompt from standard input.

    Text goes to standard output, statistics to standard error. Ctrl-C ends the text cleanly, prints what there is and
    exits with 130.

    \b
    Examples:
      edgeprec run pair.edgeprec -p "The capital of France is" -n 32
      edgeprec run pair.edgeprec --chat -p "Why is the sky blue?" --report sky.html
      cat notes.txt | edgeprec run pair.edgeprec - --mode fp16 --json
    """
    from edgeprec.cli.ignored_flags import warn_of_ignored_flags
    from edgeprec.cli.output_file import check_writable
    from edgeprec.cli.output_guard import require_apart
    from edgeprec.cli.prompt import read_prompt

    config = config_from(values)
    warn_of_ignored_flags(ctx)
    prompt = read_prompt(
        text=values["prompt"],
        file=values["file"],
        stdin=sys.stdin.buffer.read if values["source"] else None,
    )
    outputs = {f"--{name}": values[name] for name in ("trace", "report")}
    require_apart(
        outputs,
        inputs={"-f": values["file"], "--sensor": replayed_file(values["sensor"])},
        bundle=values["bundle"],
    )
    for flag, path in outputs.items():
        if path is not None:
            check_writable(path, flag=flag)
    with open_session(values["bundle"], values) as session:
        _measure_idle(session, values)
        reply = _generate(session, prompt, config, values)
    ctx.exit(INTERRUPTED if reply.finish_reason == "cancelled" else 0)


def _measure_idle(session: Session, values: Mapping[str, Any]) -> None:
    """Let the meter see the loaded model at rest; without a sensor the reply says why there are no joules."""
    if values["idle_baseline"] is None or session.meter is None:
        return
    from edgeprec.cli.progress import working

    with working("measuring power at rest", is_quiet=values["quiet"] or values["as_json"]):
        session.meter.measure_idle(values["idle_baseline"])


def _generate(session: Session, prompt: str, config: GenerationConfig, values: Mapping[str, Any]) -> Reply:
    from edgeprec.cli.follow import follow
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.printer import TextPrinter
    from edgeprec.cli.stats import stats_lines

    generation = session.stream(prompt, config, chat=values["chat"])
    printer = None if values["as_json"] else TextPrinter()
    with _trace(session, config, values) as trace:
        reply = follow(generation, show=printer.show if printer else None, trace=trace)
    if printer is None:
        print_json(reply.to_json())
    else:
        printer.finish(reply)
        if not values["quiet"]:
            click.echo(stats_lines(reply), err=True)
    if values["report"] is not None:
        _write_report(session, prompt, config, generation, values)
    return reply


def _trace(
    session: Session, config: GenerationConfig, values: Mapping[str, Any]
) -> AbstractContextManager[TraceWriter | None]:
    if values["trace"] is None:
        return nullcontext()
    from edgeprec.runtime.trace import TraceWriter

    header = {"bundle": str(values["bundle"]), "engine": asdict(session.info), "config": asdict(config)}
    return TraceWriter.open(values["trace"], header)


def _write_report(
    session: Session, prompt: str, config: GenerationConfig, generation: Generation, values: Mapping[str, Any]
) -> None:
    from edgeprec.cli.output_file import write_whole
    from edgeprec.cli.report import render_report
    from edgeprec.cli.run_report import report_of, run_of

    title = values["bundle"].name.removesuffix(".edgeprec")
    report = report_of(session, [run_of(generation, prompt=prompt)], title=title, config=config)
    write_whole(values["report"], render_report(report))
