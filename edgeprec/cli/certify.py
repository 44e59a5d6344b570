"""``edgeprec certify``: does a mode give plain FP16's tokens, with this bundle on this machine?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.options import config_from, generation_options
from edgeprec.cli.session_options import bundle_argument, open_session, session_options

if TYPE_CHECKING:
    from edgeprec.runtime.certificate import Certificate, CertificateRow

__all__ = ["certify_command"]

_SHIPPED_PROMPTS = 20


@click.command("certify", short_help="Check that exact decoding gives FP16's tokens.")
@bundle_argument
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A UTF-8 file with one prompt a line.  [default: twenty that ship with EdgePrec]",
)
@generation_options
@session_options
@json_option
@quiet_option
@click.pass_context
def certify_command(ctx: click.Context, /, **values: Any) -> None:
    """Decode prompts as the flags say and again in plain FP16, and compare them token by token.

    Exits with 0 if every token of BUNDLE is the same, or differs only where FP16's two best logits are a tie; else
    with 1. The first index that differs is named with the gap between both logits, and so is what the engine does not
    promise.

    \b
    Examples:
      edgeprec certify pair.edgeprec
      edgeprec certify pair.edgeprec -f my-prompts.txt -n 64 --json
      edgeprec certify pair.edgeprec --draft-length 5 --temperature 0.8 --seed 1
    """
    from edgeprec.cli.ignored_flags import warn_of_ignored_flags
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.progress import progress_bars

    config = config_from(values)
    warn_of_ignored_flags(ctx)
    prompts = _prompts(values["file"])
    from edgeprec.export.progress import ProgressEvent
    from edgeprec.runtime.certificate import certify

    is_silent = values["quiet"] or values["as_json"]
    with open_session(values["bundle"], values) as session, progress_bars(is_quiet=is_silent) as show:
        certificate = certify(
            session, prompts, config=config, progress=lambda done, total: show(ProgressEvent("compare", done, total))
        )
        notes = session.info.fallbacks
    if values["as_json"]:
        print_json(certificate.to_json() | {"fallbacks": list(notes)})
    else:
        click.echo("\n".join(_lines(certificate, notes, is_quiet=values["quiet"])))
    ctx.exit(0 if certificate.is_within_tolerance else 1)


def _prompts(file: Path | None) -> list[str]:
    """Return the file's prompts, or beginnings of texts from the set that results are reported on."""
    from edgeprec.cli.prompt import read_prompt_lines
    from edgeprec.prompts import load_prompts

    if file is not None:
        return read_prompt_lines(file)
    return [prompt.text for prompt in load_prompts("test", "prose")][:_SHIPPED_PROMPTS]


def _lines(certificate: Certificate, notes: Sequence[str], *, is_quiet: bool) -> Iterator[str]:
    if not is_quiet:
        yield from (_row_line(row) for row in certificate.rows)
        yield from (f"note: {note}" for note in notes)
    rows = certificate.rows
    yield (
        f"{certificate.verdict}: mode {certificate.mode} against fp16, {len(rows)} prompts, "
        f"{sum(row.tokens for row in rows)} tokens, tolerance {certificate.tolerance:g}"
    )


def _row_line(row: CertificateRow) -> str:
    from edgeprec.cli.render import visible

    prompt = visible(row.prompt if len(row.prompt) <= 48 else f"{row.prompt[:47]}…")
    if row.first_difference is None:
        return f"  same       {row.tokens:>5} tokens  {prompt}"
    return f"  differs at {row.first_difference:>5}, logit gap {row.logit_gap:.2g}  {prompt}"
