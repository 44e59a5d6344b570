"""``edgeprec verify``: read every byte of a bundle and compare it with its SHA-256."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeprec.cli.common import json_option, quiet_option

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle
    from edgeprec.bundle_verify import Problem, VerifyReport

__all__ = ["verify_command"]


@click.command("verify", short_help="Check every byte of a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
@quiet_option
@click.pass_context
def verify_command(ctx: click.Context, /, bundle: Path, as_json: bool, quiet: bool) -> None:
    """Read every byte of BUNDLE and compare it with what was exported.

    Names each file that is damaged, missing, not listed, of another model, or a hard link that would not run. Exits
    with 0 if there is none, else 3.

    \b
    Examples:
      edgeprec verify smollm2.edgeprec
      edgeprec verify smollm2.edgeprec --json | jq .problems
    """
    from edgeprec.bundle import Bundle
    from edgeprec.bundle_verify import verify_bundle
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.progress import progress_bars
    from edgeprec.export.progress import ProgressEvent

    opened = Bundle.read_manifest(bundle)
    with progress_bars(is_quiet=quiet or as_json) as progress:
        report = verify_bundle(opened, progress=lambda done, total: progress(ProgressEvent("verify", done, total)))
    report = replace(report, problems=(*report.problems, *_linked_weights(opened)))
    if as_json:
        print_json(report.to_json())
        ctx.exit(0 if report.is_ok else 3)
    _say(report, is_quiet=quiet)


def _linked_weights(bundle: Bundle) -> Iterator[Problem]:
    """Give the weights that are whole and still do not run, because ONNX Runtime takes hard links for an attack."""
    from edgeprec.bundle_verify import Problem, ProblemKind

    for name in sorted(bundle.manifest.files):
        path = bundle.root / name
        links = path.stat().st_nlink if path.is_file() else 1
        if name.endswith(".safetensors") and links > 1:
            detail = f"{links} hard links, onnxruntime reads weights with one alone: run a copy made with cp -r"
            yield Problem(name, ProblemKind.UNFIT, detail)


def _say(report: VerifyReport, *, is_quiet: bool) -> None:
    """Print one line, or one for each problem and then an error."""
    from edgeprec.cli.render import visible
    from edgeprec.errors import BundleError

    for problem in report.problems:
        click.echo(visible(f"{problem.kind:<8} {problem.path}: {problem.detail}"))
    if report.problems:
        raise BundleError(
            f"{report.root} is not as exported (problems: {len(report.problems)}): copy or export it again"
        )
    if not is_quiet:
        click.echo(f"{report.root}: {report.num_files} files, {report.size_bytes:,} bytes, every one as exported")
