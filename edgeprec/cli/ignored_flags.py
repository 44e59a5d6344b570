"""Flags that another flag makes idle: whoever gave both is told, for a slip of the hand looks the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from edgeprec.config import DrafterKind, Mode

__all__ = ["warn_of_flags_left_to_requests", "warn_of_ignored_flags"]

_log = logging.getLogger(__name__)
_FIXED = ("max_draft_length", "rule", "objective")  # what a draft length that is a number switches off
_DRAFTING = ("drafter", "draft_length", *_FIXED, "three_level")
_CONTROLLER = ("theta_low_bits", "theta_high_bits", "hold_tokens", "window", "middle_gears", "gated_layers")
_TRUNCATION = ("top_p", "top_k", "min_p")
_GREEDY = "--temperature 0"


def warn_of_ignored_flags(ctx: click.Context) -> None:
    """Warn once of each flag on the command line that does nothing beside the others.

    Settings from the environment and from a file are for many commands, so that those may be idle here.
    """
    for flags, reason in _ignored(ctx):
        have = "has" if len(flags) == 1 else "have"
        _log.warning("%s %s no effect with %s: leave out one or the other", " and ".join(flags), have, reason)


def warn_of_flags_left_to_requests(ctx: click.Context) -> None:
    """Warn of the same in a server, whose requests may choose a mode and a drafter, and mostly set a temperature."""
    for flags, reason in _ignored(ctx):
        if reason != _GREEDY:
            count = "counts" if len(flags) == 1 else "count"
            _log.warning("%s only %s for requests that do not take %s", " and ".join(flags), count, reason)


def _ignored(ctx: click.Context) -> Iterator[tuple[list[str], str]]:
    """Give flags of the command line, each once, and what makes them idle."""
    told: set[str] = set()
    for reason, names in _idle(ctx.params):
        flags = [_flag(ctx, name) for name in names if name not in told and _is_typed(ctx, name)]
        told |= set(names)
        if flags:
            yield flags, reason


def _idle(values: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Give what makes flags idle, as the command line has it, and the parameters of those."""
    mode = Mode(values["mode"])
    if mode in (Mode.FP16, Mode.INT4):
        yield f"--mode {mode}", (*_DRAFTING, *_CONTROLLER)
    if mode is Mode.GATED:
        yield f"--mode {mode}", _DRAFTING
    if mode is not Mode.BOUNDED:
        yield f"--mode {mode}", ("epsilon",)
    if values["drafter"] == DrafterKind.NONE:
        yield "--drafter none", ("draft_length", *_FIXED)
    if values["draft_length"] is not None:
        yield f"--draft-length {values['draft_length']}", _FIXED
    if values["temperature"] == 0.0:
        yield _GREEDY, _TRUNCATION


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _flag(ctx: click.Context, name: str) -> str:
    return next(option.opts[-1] for option in ctx.command.params if option.name == name)
