"""``edgeprec distill``: train a small draft for a target."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.parameter_types import FINITE

if TYPE_CHECKING:
    from edgeprec.export.distill import DistilledDraft
    from edgeprec.export.distill_settings import DistillSettings

__all__ = ["distill_command", "settings_from"]

_FLAGS = (
    "layers",
    "minutes",
    "steps",
    "sample_tokens",
    "sample_rows",
    "sequence_tokens",
    "rows_per_step",
    "learning_rate",
    "argmax_weight",
    "text",
    "device",
    "seed",
)


@click.command("distill", short_help="Train a small draft for a target.")
@click.argument("target")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The new draft.")
@click.option("--layers", type=int, help="Layers of the draft.  [default: 4]")
@click.option("--minutes", type=FINITE, help="Time for everything.  [default: 10]")
@click.option("--steps", type=int, help="Train so many steps instead, however long they take.")
@click.option("--sample-tokens", type=int, help="Text drawn from the target.  [default: 20M on a GPU, 200k on a CPU]")
@click.option("--sample-rows", type=int, help="Sequences drawn at a time.  [default: 2048 on a GPU, 32 on a CPU]")
@click.option("--sequence-tokens", type=int, help="Length of a sequence.  [default: 384]")
@click.option("--rows-per-step", type=int, help="Sequences in a step.  [default: 64 on a GPU, 8 on a CPU]")
@click.option("--learning-rate", type=FINITE, help="Largest learning rate.  [default: 0.002]")
@click.option("--argmax-weight", type=FINITE, help="0 to 1: how much greedy decoding counts.  [default: 0.3]")
@click.option("--text", type=click.Path(path_type=Path), metavar="FILE", help="A UTF-8 text to learn from as well.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where to train.  [default: auto]")
@click.option("--seed", type=int, help="Seed of every random choice.  [default: 0]")
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted.")
@json_option
@quiet_option
def distill_command(**values: Any) -> None:
    """Train a small draft for TARGET, a Hugging Face folder or id or a GGUF file.

    The draft is a few of the target's layers over the target's own embedding and head, trained on text that the target
    writes. It needs the extra torch, and a GPU: minutes there, hours on a CPU, which says beforehand how many. Work in
    progress lies in DIR.partial; --resume goes on with it after a kill.

    \b
    Examples:
      edgeprec distill ./SmolLM2-135M-Instruct -o smollm2-draft
      edgeprec export ./SmolLM2-135M-Instruct --draft smollm2-draft -o smollm2.edgeprec
      edgeprec distill ./my-model -o my-draft --layers 3 --minutes 30 --text mails.txt
    """
    from edgeprec.cli.output_guard import require_outside_bundles
    from edgeprec.cli.progress import progress_bars
    from edgeprec.export.distill import distill

    require_outside_bundles(values["output"], flag="-o")
    is_silent = values["quiet"] or values["as_json"]
    with progress_bars(is_quiet=is_silent) as progress:
        draft = distill(
            values["target"],
            values["output"],
            settings_from(values),
            resume=values["resume"],
            command=shlex.join(["edgeprec", *sys.argv[1:]]),
            progress=progress,
        )
    _say(draft, as_json=values["as_json"], is_silent=is_silent)


def settings_from(values: Mapping[str, Any]) -> DistillSettings:
    """Return the settings that flags ask for; what was not given keeps the default of its field.

    Raises:
        ConfigError: a value is not allowed.
    """
    from edgeprec.export.distill_settings import DistillSettings

    return DistillSettings(**{name: values[name] for name in _FLAGS if values[name] is not None})


def _say(draft: DistilledDraft, *, as_json: bool, is_silent: bool) -> None:
    from edgeprec.cli.json_output import print_json

    if as_json:
        print_json({"path": str(draft.path), **draft.record})
    elif not is_silent:
        rate = 100.0 * float(draft.record["acceptance_rate"])
        advice = f"use it with edgeprec export --draft {draft.path}"
        click.echo(f"{draft.path}: the target accepts {rate:.0f} % of its tokens; {advice}")
