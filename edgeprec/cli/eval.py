"""``edgeprec eval``: how faithful INT4, the modes and the drafts of a bundle are, in one run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.session_options import bundle_argument, open_session, session_options
from edgeprec.config import DraftingConfig

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle
    from edgeprec.runtime.evaluation import EvaluationSettings

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
    "--epsilon", type=float, default=DraftingConfig().epsilon, help="Share of tokens that mode bounded may get wrong."
)
@session_options
@json_option
@quiet_option
def eval_command(**values: Any) -> None:
    """Measure BUNDLE on prompts of four kinds that neither calibration nor tuning has seen.

    Forced top-1 agreement, KL divergence, exact common prefix and free-running match with FP16 by the number of layers
    in INT4 and by entropy; what the modes keep of FP16's text; acceptance and speed of every drafter, draft length and
    rule. Takes under ten minutes for a model of 135M weights on two cores.

    INT4 is lossless on a checkpoint whose weights already lay on a 4-bit grid, as the demo's did: --rotate measures a
    copy with the same function in weights without a grid. The copy is made in $EDGEPREC_CACHE and kept.

    \b
    Examples:
      edgeprec eval pair.edgeprec
      edgeprec eval ~/.cache/edgeprec/smollm2-135m.edgeprec --rotate -o fidelity
      edgeprec eval pair.edgeprec --full --json | jq .modes
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.eval_markdown import evaluation_markdown
    from edgeprec.cli.json_output import print_json

    settings = _settings(values)
    bundle = Bundle.open(values["bundle"])
    if values["output"] is not None:
        _make_folder(values["output"])
    is_silent = values["quiet"] or values["as_json"]
    measured = rotated_copy(bundle, is_quiet=is_silent) if values["is_rotated"] else bundle
    found = _evaluate(measured, values, settings, is_quiet=is_silent)
    if values["output"] is not None:
        write_evaluation(values["output"], found)
    if values["as_json"]:
        print_json(found)
    else:
        click.echo(evaluation_markdown(found), nl=False)


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


def write_evaluation(folder: Path, found: dict[str, Any]) -> None:
    """Write eval.json, eval.md and the pictures into ``folder``."""
    import json

    from edgeprec.cli.eval_markdown import evaluation_markdown
    from edgeprec.cli.eval_pictures import draw_pictures
    from edgeprec.cli.output_file import write_whole

    pictures = draw_pictures(found)
    for name, svg in pictures.items():
        write_whole(folder / name, svg)
    write_whole(folder / "eval.md", evaluation_markdown(found, pictures=tuple(pictures)))
    write_whole(folder / "eval.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _settings(values: dict[str, Any]) -> EvaluationSettings:
    from dataclasses import replace

    from edgeprec.runtime.evaluation import EvaluationSettings

    DraftingConfig(epsilon=values["epsilon"])  # refuse it before anything is loaded
    settings = EvaluationSettings.full() if values["is_full"] else EvaluationSettings()
    return replace(settings, epsilon=values["epsilon"])


def _evaluate(
    bundle: Bundle, values: dict[str, Any], settings: EvaluationSettings, *, is_quiet: bool
) -> dict[str, Any]:
    from edgeprec.bundle import BundleModel
    from edgeprec.cli.progress import progress_bars
    from edgeprec.export.progress import ProgressEvent
    from edgeprec.prompts import load_prompts
    from edgeprec.runtime.evaluation import evaluate

    began_ns = time.monotonic_ns()
    with open_session(bundle.root, values) as session, progress_bars(is_quiet=is_quiet) as show:
        found = evaluate(
            session,
            load_prompts("short"),
            settings=settings,
            has_draft_model=isinstance(bundle.draft, BundleModel),
            progress=lambda stage, done, total: show(ProgressEvent(stage, done, total)),
        ).to_json()
        engine = f"{session.info.name} on {session.info.device}"
    int4 = bundle.target.entry.int4
    return {
        "bundle": bundle.manifest.name,
        "rotated": any(name.startswith("rotated-") for name in bundle.manifest.sources),
        "quantizer": int4.quantizer,
        "group_size": int4.group_size,
        "bits_per_weight": int4.bits_per_weight,
        "engine": engine,
        "seconds": (time.monotonic_ns() - began_ns) * 1e-9,
        **found,
    }


def _make_folder(folder: Path) -> None:
    """Make the output folder before the long work.

    Raises:
        ConfigError: it cannot be made or written.
    """
    from edgeprec.cli.output_file import check_writable
    from edgeprec.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o {folder} cannot be made: {error.strerror}") from error
    check_writable(folder / "eval.json", flag="-o")
