"""``edgeprec export``: turn a checkpoint into a bundle."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.parameter_types import DRAFT_LENGTH

if TYPE_CHECKING:
    from edgeprec.export.settings import ExportSettings

__all__ = ["export_command"]

_log = logging.getLogger(__name__)


@click.command("export", short_help="Turn a checkpoint into a bundle.")
@click.argument("source")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The new folder.")
@click.option("--draft", default="self", metavar="SOURCE|self|none", help="Who drafts; self is the target in INT4.")
@click.option("--quantizer", type=click.Choice(["rtn", "clip", "gptq"]), help="How INT4 is chosen.  [default: gptq]")
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), help="Weights that share a scale.  [default: 32]")
@click.option(
    "--symmetric/--zero-point",
    "is_symmetric",
    default=None,
    help="INT4 with a scale alone, or a scale and a zero point.  [default: symmetric]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A UTF-8 text like what the model will read.  [default: one that ships with EdgePrec]",
)
@click.option("--tensorrt", metavar="SM,..", help="Build TensorRT engines for these GPUs.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["bundle", "compressed-tensors"]),
    default="bundle",
    help="A bundle, or the INT4 target as a checkpoint for vLLM, SGLang and transformers.",
)
@click.option(
    "--draft-length",
    type=DRAFT_LENGTH,
    default="adaptive",
    help="With compressed-tensors: tokens a round in the serve command; adaptive gives the longest draft, 8.",
)
@click.option("--resume", is_flag=True, help="Go on with an export that was interrupted.")
@json_option
@quiet_option
@click.pass_context
def export_command(ctx: click.Context, /, **values: Any) -> None:
    """Turn SOURCE, a Hugging Face folder or id, a GGUF file or a bundle, into one with an INT4 and an FP16 variant.

    The bundle appears when it is whole; until then the work lies in DIR.partial, and --resume goes on with it.

    \b
    Examples:
      edgeprec export ./SmolLM2-135M-Instruct -o smollm2.edgeprec
      edgeprec export model.Q4_1.gguf -o model.edgeprec --quantizer gptq --group-size 64
      edgeprec export ./Llama-3.1-8B --draft ./Llama-3.2-1B -o llama.edgeprec --calibration mails.txt
      edgeprec export llama.edgeprec --format compressed-tensors --group-size 128 -o llama-int4
    """
    from edgeprec.cli.output_guard import require_outside_bundles
    from edgeprec.cli.progress import progress_bars
    from edgeprec.extras import require_export_packages

    require_export_packages()
    require_outside_bundles(values["output"], flag="-o")
    if values["output_format"] == "compressed-tensors":
        from edgeprec.cli.hand_off import hand_off

        hand_off(values, settings_from(values))
        return
    if values["tensorrt"] is not None:
        _check_tensorrt(values["tensorrt"])
    from edgeprec.api import export_bundle

    if ctx.get_parameter_source("draft_length") is ParameterSource.COMMANDLINE:
        _log.warning(
            "--draft-length has no effect with --format bundle: a bundle's draft length is chosen when it runs"
        )
    if ctx.get_parameter_source("draft") is ParameterSource.DEFAULT:
        _warn_of_lost_draft(values["source"])
    is_silent = values["quiet"] or values["as_json"]
    with progress_bars(is_quiet=is_silent) as progress:
        path = export_bundle(
            values["source"],
            values["output"],
            draft=values["draft"],
            settings=settings_from(values),
            resume=values["resume"],
            progress=progress,
        )
    if values["tensorrt"] is not None:
        _build_engines(path, values["tensorrt"], is_quiet=is_silent)
    _say(path, as_json=values["as_json"], is_silent=is_silent)


def _warn_of_lost_draft(source: str) -> None:
    """Say that a bundle's draft model stays behind: an export takes the target out of a bundle, and no more."""
    from edgeprec.bundle import Bundle, BundleModel
    from edgeprec.bundle_schema import MANIFEST_NAME

    folder = Path(source).expanduser()
    if (folder / MANIFEST_NAME).is_file() and isinstance(Bundle.read_manifest(folder).draft, BundleModel):
        _log.warning(
            "%s has a draft model, which the new bundle will not have: give --draft the checkpoint of the draft, or "
            "--draft self if the INT4 target is to draft",
            source,
        )


def _check_tensorrt(sms: str) -> None:
    """Refuse engines that cannot be built before the long export begins."""
    from edgeprec.export.tensorrt import check_library
    from edgeprec.tensorrt_library import parse_sms

    check_library(parse_sms(sms))


def _build_engines(path: Path, sms: str, *, is_quiet: bool) -> None:
    from edgeprec.bundle import Bundle
    from edgeprec.cli.build import add_engines, say_engines

    say_engines(add_engines(Bundle.open(path), sms, is_quiet=is_quiet), as_json=False, is_quiet=is_quiet)


def settings_from(values: Mapping[str, Any]) -> ExportSettings:
    """Return the export settings that flags ask for; what was not given keeps the default of its field.

    Raises:
        ConfigError: a value is not allowed.
    """
    from edgeprec.export.quantizer import QuantizerSettings
    from edgeprec.export.settings import ExportSettings

    given = {"method": values["quantizer"], "is_symmetric": values["is_symmetric"]}
    given["group_size"] = int(values["group_size"]) if values["group_size"] is not None else None
    quantizer = QuantizerSettings(**{name: value for name, value in given.items() if value is not None})
    return ExportSettings(quantizer=quantizer, calibration=values["calibration"])


def _say(path: Path, *, as_json: bool, is_silent: bool) -> None:
    from edgeprec.bundle import Bundle
    from edgeprec.cli.json_output import print_json

    bundle = Bundle.open(path)
    if as_json:
        print_json({"path": str(path), "bytes": bundle.size_bytes, "name": bundle.manifest.name})
    elif not is_silent:
        click.echo(f'{path}: {bundle.size_bytes / 1e6:.0f} MB; try it with edgeprec run {path} -p "Once upon a time"')
