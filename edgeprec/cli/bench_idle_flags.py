"""Flags of ``bench`` that do nothing beside the others: refused where both cannot be meant, else told of once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from edgeprec.config import DrafterKind, Mode
from edgeprec.errors import ConfigError

__all__ = ["check_flags"]

_log = logging.getLogger(__name__)
_OF_A_SERVER = ("against_model", "against_key_file", "against_timeout")
_OF_OUR_ENGINE = ("engine", "provider", "context_tokens", "threads", "batch_rows")
_FIXED = ("max_draft_length", "rule", "objective")  # what a draft length that is a number switches off
_DRAFTING = ("drafter", "draft_lengths", *_FIXED, "three_level")
_CONTROLLER = ("theta_low_bits", "theta_high_bits", "hold_tokens", "window", "middle_gears", "gated_layers")
_DRAWN = ("top_p", "top_k", "min_p", "seed")


def check_flags(ctx: click.Context) -> None:
    """Warn of each flag on the command line that does nothing beside the others.

    Settings from the environment and from a file are for many commands, so that those may be idle here.

    Raises:
        ConfigError: a flag concerns a server and there is none, or two flags ask for two formats.
    """
    values = ctx.params
    lost = [_flag(ctx, name) for name in _OF_A_SERVER if _is_typed(ctx, name)]
    if lost and values["against"] is None:
        raise ConfigError(f"{' and '.join(lost)} without --against: give the server's URL, or leave it out")
    if values["as_json"] and _is_typed(ctx, "output") and values["output"] != "json":
        raise ConfigError(f"--json and -o {values['output']} ask for two formats: leave one of them out")
    told: set[str] = set()
    for reason, names in _idle(values):
        flags = [_flag(ctx, name) for name in names if name not in told and _is_typed(ctx, name)]
        told |= set(names)
        if flags:
            _log.warning("%s %s no effect %s", " and ".join(flags), "has" if len(flags) == 1 else "have", reason)


def _idle(values: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Give what makes flags idle, and the parameters of those."""
    modes, lengths = values["modes"], values["draft_lengths"]
    named = f"with --mode {','.join(modes)}: leave one or the other out"
    if not {Mode.EXACT, Mode.BOUNDED} & set(modes):
        yield named, _DRAFTING
    if set(modes) <= {Mode.FP16, Mode.INT4}:
        yield named, _CONTROLLER
    if Mode.BOUNDED not in modes:
        yield named, ("epsilon",)
    if values["drafter"] == DrafterKind.NONE:
        yield "with --drafter none: leave one or the other out", ("draft_lengths", *_FIXED)
    if None not in lengths:
        yield "without an adaptive --draft-length: leave one or the other out", _FIXED
    if values["temperature"] == 0.0:
        yield "with --temperature 0: leave one or the other out", _DRAWN
    if values["prompts"] is None:
        yield "without --prompts: synthetic tests go past the end of a text anyhow", ("ignore_eos",)
    yield from _idle_rows(values)
    if values["against"] is not None:
        yield "on the rows of the server: it has settings of its own", _OF_OUR_ENGINE


def _idle_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    prompt_tokens, rows = values["prompt_tokens"], values["batch_rows"] or ()
    has_prefill = values["pairs"] or (any(prompt_tokens) if prompt_tokens is not None else values["prompts"] is None)
    if not has_prefill and values["prompts"] is None:
        yield "without a prefill: give -p or -pg", ("batch_rows",)
    if not has_prefill and values["prompts"] is not None and len(rows) > 1:
        yield "on --prompts with several numbers: give one", ("batch_rows",)


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _flag(ctx: click.Context, name: str) -> str:
    return next(option.opts[-1] for option in ctx.command.params if option.name == name)
