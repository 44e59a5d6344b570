"""``edgeprec demo``: from nothing to text, speed and a report, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.session_options import open_session, session_options

__all__ = ["demo_command"]


@click.command("demo", short_help="Fetch the demo model, export it, run it and write a report.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=2), default=96, help="Tokens for each prompt at most.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Where the report goes.  [default: demo-report.html in the cache]",
)
@session_options
@json_option
@quiet_option
def demo_command(**values: Any) -> None:
    """Fetch SmolLM2-135M (93 MB), export it, and run two prompts in mode exact and in plain FP16.

    Prints the text coloured by what produced each token, the speed of both, how many drafts were accepted, the share of
    layer passes in INT4, and energy or why there is none. Drafts come from a distilled draft where one ships with this
    version, else from the model's own INT4 variant. What was fetched and exported stays in $EDGEPREC_CACHE
    (~/.cache/edgeprec), so a second run takes seconds.

    \b
    Examples:
      edgeprec demo
      edgeprec demo -n 200 --report demo.html
      edgeprec demo --json | jq .speedup
    """
    from edgeprec.cli.cache import cache_folder
    from edgeprec.cli.demo_model import LICENSE_NOTE
    from edgeprec.cli.demo_run import prepare_bundle, run_demo
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.output_file import check_writable
    from edgeprec.cli.shipped_draft import describe_drafts, shipped_draft

    cache = cache_folder()
    report = values["report"] or cache / "demo-report.html"
    check_writable(report, flag="--report")
    is_silent = values["quiet"] or values["as_json"]
    if not is_silent:
        click.echo(LICENSE_NOTE, err=True)
        click.echo(describe_drafts(shipped_draft()), err=True)
    bundle = prepare_bundle(cache, is_quiet=is_silent)
    with open_session(bundle, values) as session:
        result = run_demo(session, max_new_tokens=values["max_new_tokens"], shows_text=not values["as_json"])
        result.write_report(session, report)
    if values["as_json"]:
        print_json({"bundle": str(bundle), "report": str(report), **result.to_json()})
    else:
        click.echo("\n".join(["", *(line for line in (result.energy, result.summary) if line), f"report: {report}"]))
