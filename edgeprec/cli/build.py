"""``edgeprec build``: TensorRT engines into an existing bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle

__all__ = ["add_engines", "build_command", "say_engines"]


@click.command("build", short_help="Build TensorRT engines into a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--tensorrt", metavar="SM,..", required=True, help="GPU generations, such as sm86,sm89,sm120.")
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(min=2),
    metavar="TOKENS",
    help="Longest context.  [default: 4096]",
)
@click.option(
    "--segment-layers",
    "layers_per_segment",
    type=click.IntRange(min=1),
    default=4,
    metavar="N",
    help="Layers that change precision together.",
)
@json_option
@quiet_option
def build_command(
    bundle: Path, tensorrt: str, context_tokens: int | None, layers_per_segment: int, as_json: bool, quiet: bool
) -> None:
    """Build engines of every model of BUNDLE and list them in it. With TensorRT-RTX this needs no GPU.

    Engines of the same GPU generation are replaced, and damaged ones that no build replaces are dropped. An interrupted
    build leaves the bundle as it was.

    \b
    Examples:
      edgeprec build smollm2.edgeprec --tensorrt sm86,sm89,sm120
      edgeprec build smollm2.edgeprec --tensorrt sm87 --context 2048      # on a Jetson Orin, for itself
      edgeprec build smollm2.edgeprec --tensorrt sm89 --segment-layers 1  # each layer chooses for itself
    """
    from edgeprec.bundle import Bundle

    built = add_engines(
        Bundle.open_to_build(bundle),
        tensorrt,
        context_tokens=context_tokens,
        layers_per_segment=layers_per_segment,
        is_quiet=quiet or as_json,
    )
    say_engines(built, as_json=as_json, is_quiet=quiet)


def add_engines(
    bundle: Bundle,
    sms: str,
    *,
    is_quiet: bool,
    context_tokens: int | None = None,
    layers_per_segment: int | None = None,
) -> Bundle:
    """Build engines for the GPU generations named in ``sms`` and return the bundle that lists them.

    Raises:
        ConfigError, EngineError, MemoryBudgetError, MissingDependency: see ``edgeprec.export.tensorrt``.
    """
    from edgeprec.cli.progress import progress_bars
    from edgeprec.extras import require_export_packages
    from edgeprec.tensorrt_library import parse_sms

    names = parse_sms(sms)
    require_export_packages(purpose="building TensorRT engines")
    from edgeprec.export.tensorrt import LAYERS_PER_SEGMENT, EngineSettings, build_engines

    settings = EngineSettings(
        sms=names,
        context_tokens=context_tokens,
        layers_per_segment=LAYERS_PER_SEGMENT if layers_per_segment is None else layers_per_segment,
    )
    with progress_bars(is_quiet=is_quiet) as progress:
        return build_engines(bundle, settings, progress=progress)


def say_engines(bundle: Bundle, *, as_json: bool, is_quiet: bool) -> None:
    """Print the bundle's engines as JSON, a line for each file, or nothing."""
    from edgeprec.cli.json_output import print_json

    engines = bundle.to_summary()["engines"]
    if as_json:
        print_json({"bundle": str(bundle.root), "engines": engines})
    elif not is_quiet:
        for engine in _by_file(engines):
            click.echo(
                f"{engine['model']} for {engine['sm']}: {engine['bytes'] / 1e6:.0f} MB, {engine['kind']} "
                f"{engine['version']}, {engine['file']}"
            )


def _by_file(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each file; ``sm`` names every GPU generation it serves."""
    files: dict[str, dict[str, Any]] = {}
    for engine in engines:
        known = files.get(engine["file"])
        files[engine["file"]] = engine if known is None else known | {"sm": f"{known['sm']}, {engine['sm']}"}
    return list(files.values())
