"""``edgeprec eval``: how faithful INT4, the modes and the drafts of a bundle are, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.parameter_types import FINITE
from edgeprec.cli.session_options import bundle_argument, open_session, session_options
from edgeprec.config import DraftingConfig

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle
    from edgeprec.runtime.evaluation_settings import EvaluationSettings, Table

__all__ = ["eval_command"]


@click.command("eval", short_help="Measure how faithful INT4 and the modes are, and which drafts pay.")
@bundle_argument
@click.option("--full", "is_full", is_flag=True, help="More prompts and longer replies; takes about six times as long.")
@click.option("--rotate", "is_rotated", is_flag=True, help="Measure the same function in rotated weights.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write eval.json, eval.md and the pictures into this folder.",
)
@click.option(
    "--epsilon",
    type=FINITE,
    default=DraftingConfig().epsilon,
    help="Share of tokens that mode bounded may get wrong.",
)
@click.option(
    "--only",
    "tables",
    metavar="TABLES",
    callback=lambda _context, _option, value: _parse_tables(value),
    help="Measure only these, separated by commas: layers, modes, drafts.",
)
@click.option(
    "--resume", "is_resumed", is_flag=True, help="Keep the tables that an interrupted run left in -o; measure the rest."
)
@session_options
@json_option
@quiet_option
def eval_command(**values: Any) -> None:
    """Measure BUNDLE on prompts of four kinds that neither calibration nor tuning has seen.

    Forced top-1 agreement, KL divergence, exact common prefix and free-running match with FP16 by the number of layers
    in INT4 and by entropy; what the modes keep of FP16's text; acceptance and speed of every drafter, draft length and
    rule. Takes under ten minutes for a model of 135M weights on two idle cores. Each table is in the folder of -o as
    soon as it is measured; after Ctrl-C the tables there are printed, and --resume measures the others.

    INT4 is lossless on a checkpoint whose weights already lay on a 4-bit grid, as the demo's did: --rotate measures a
    copy with the same function in weights without a grid. The copy is made in $EDGEPREC_CACHE and kept.

    \b
    Examples:
      edgeprec eval pair.edgeprec
      edgeprec eval ~/.cache/edgeprec/smollm2-135m.edgeprec --rotate -o fidelity
      edgeprec eval pair.edgeprec --full --only modes --json | jq .modes
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.eval_files import output_folder

    settings = _settings(values)
    if values["is_resumed"] and values["output"] is None:
        raise click.UsageError("--resume needs -o, the folder of the run to go on with")
    bundle = Bundle.open(values["bundle"])
    with output_folder(values["output"]):
        _measure(bundle, settings, values)


def _measure(bundle: Bundle, settings: EvaluationSettings, values: dict[str, Any]) -> None:
    from edgeprec.cli.eval_files import known_tables
    from edgeprec.cli.eval_run import EvaluationRun

    is_silent = values["quiet"] or values["as_json"]
    measured = rotated_copy(bundle, is_quiet=is_silent) if values["is_rotated"] else bundle
    run = EvaluationRun(bundle=measured, settings=settings, folder=values["output"], is_quiet=is_silent)
    if values["is_resumed"]:
        run.known = known_tables(values["output"], run.facts)
    try:
        run.measure(lambda: open_session(measured.root, values))
    finally:  # after Ctrl-C too: what was measured is shown
        _show(run.found, as_json=values["as_json"])


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    from edgeprec.cli.eval_markdown import evaluation_markdown
    from edgeprec.cli.json_output import print_json

    if not found:
        return
    if as_json:
        print_json(found)
    else:
        click.echo(evaluation_markdown(found), nl=False)


def _parse_tables(value: str | None) -> tuple[Table, ...] | None:
    from edgeprec.runtime.evaluation_settings import Table

    if value is None:
        return None
    asked = [name.strip() for name in value.split(",")]
    unknown = [name for name in asked if name not in tuple(Table)]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no table, expected some of {', '.join(Table)}")
    return tuple(table for table in Table if table in asked)


def rotated_copy(bundle: Bundle, *, is_quiet: bool) -> Bundle:
    """Return the bundle's rotated copy in the cache, quantized like the bundle; make it if it is not there.

    Raises:
        MissingDependency: it has to be made and a package of the extra ``export`` is not installed.
    """
    from edgeprec.api import ExportSettings, export_rotated
    from edgeprec.bundle import Bundle
    from edgeprec.cli.cache import cache_folder
    from edgeprec.cli.progress import progress_bars
    from edgeprec.export.quantizer import QuantizerSettings
    from edgeprec.extras import require_export_packages

    int4 = bundle.target.entry.int4
    name = f"{bundle.manifest.name}-rotated-{bundle.manifest.export_fingerprint[:12]}.edgeprec"
    require_export_packages()
    quantizer = QuantizerSettings(
        method=int4.quantizer,  # type: ignore[arg-type]  # checked there
        group_size=int4.group_size,
        is_symmetric=int4.symmetric,
    )
    settings = ExportSettings(quantizer=quantizer, is_calibrated=True)
    with progress_bars(is_quiet=is_quiet) as progress:
        path = export_rotated(bundle.root, cache_folder() / name, settings=settings, progress=progress)
    return Bundle.open(path)


def _settings(values: dict[str, Any]) -> EvaluationSettings:
    from dataclasses import replace

    from edgeprec.runtime.evaluation_settings import EvaluationSettings

    DraftingConfig(epsilon=values["epsilon"])  # refuse it before anything is loaded
    settings = EvaluationSettings.full() if values["is_full"] else EvaluationSettings()
    return replace(settings, epsilon=values["epsilon"], tables=values["tables"] or settings.tables)
