"""The flags of ``bench``. The short ones of the tests are those of llama-bench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgeprec.cli.bench_lists import COUNTS, COUNTS_FROM_1, DRAFT_LENGTHS, MODES, PAIRS
from edgeprec.cli.options import generation_options
from edgeprec.cli.parameter_types import FiniteRange

__all__ = ["FORMATS", "bench_options", "tuning_options"]

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("md", "csv", "json", "jsonl")
_STOOD_IN_FOR = ("mode", "max_new_tokens", "draft_length", "stop")  # bench has lists of its own, or no use for them

_OPTIONS = (
    click.option(
        "-p", "--n-prompt", "prompt_tokens", type=COUNTS, help="Prompt tokens to prefill; 0 is none.  [default: 512]"
    ),
    click.option("-n", "--n-gen", "new_tokens", type=COUNTS, default="128", help="New tokens to decode; 0 is none."),
    click.option(
        "-d", "--n-depth", "depths", type=COUNTS, default="0", help="Tokens that lie in the cache beforehand."
    ),
    click.option("-pg", "--n-prompt-gen", "pairs", type=PAIRS, help="Prefill and decoding timed as one."),
    click.option(
        "-b",
        "--batch-size",
        "batch_rows",
        type=COUNTS_FROM_1,
        help="Rows of one prefill pass.  [default: the engine's most]",
    ),
    click.option(
        "-npl",
        "--n-sequences",
        "sequences",
        type=COUNTS_FROM_1,
        default="1",
        help="Sequences decoded at once, with --engine torch.",
    ),
    click.option("--mode", "modes", type=MODES, default="fp16,exact", help="Modes: fp16, int4, exact, bounded, gated."),
    click.option(
        "--draft-length",
        "draft_lengths",
        type=DRAFT_LENGTHS,
        default="adaptive",
        help="Tokens to draft before each check: adaptive, numbers, ranges.",
    ),
    click.option(
        "--prompts",
        metavar="small|large|FILE",
        help="Decode real prompts: the 27 or the 200 that ship, or those of a file.",
    ),
    click.option("-r", "--repetitions", "repeats", type=click.IntRange(min=1), default=5, help="Measured repeats."),
    click.option("--no-warmup", is_flag=True, help="Leave out the run before the first repeat."),
    click.option(
        "--idle-seconds",
        type=FiniteRange(min=0.0, max=3600.0),
        default=10.0,
        help="Time at rest to measure idle power in; 0 leaves it out.",
    ),
    click.option("--require-energy", is_flag=True, help="Fail with 5 where the joules of a total are not measured."),
    click.option("--against", metavar="URL", help="Run the same on an OpenAI-compatible server too."),
    click.option("--against-model", metavar="ID", help="The server's model.  [default: its first]"),
    click.option(
        "--against-key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A file with the server's API key.",
    ),
    click.option(
        "--against-timeout",
        type=FiniteRange(min=0.0, min_open=True, max=86_400.0),
        default=60.0,
        metavar="SECONDS",
        help="How long the server may take for its next token.",
    ),
    click.option("-o", "--output-format", "output", type=click.Choice(FORMATS), default="md", help="What is printed."),
    click.option(
        "--save",
        type=click.Path(path_type=Path),
        metavar="FILE.jsonl",
        help="Append every result to this file as well, as soon as it is there.",
    ),
)


def bench_options(function: F) -> F:
    """Add the flags of the tests and of the output."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def tuning_options() -> list[click.Parameter]:
    """Return the flags of a generation that hold for every row."""
    command = click.command()(generation_options(lambda **_values: None))
    return [parameter for parameter in command.params if parameter.name not in _STOOD_IN_FOR]
