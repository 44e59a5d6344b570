"""The flags of a generation, and how they become a ``GenerationConfig``. Defaults are read from the config's fields.

A parameter is named after the field it fills, so the way back is one comprehension per dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from edgeprec.cli.parameter_types import DRAFT_LENGTH, FINITE, STOP_TEXT
from edgeprec.config import (
    ControllerConfig,
    DrafterKind,
    DraftingConfig,
    DraftRule,
    GenerationConfig,
    Mode,
    Objective,
    SamplingConfig,
)

__all__ = ["config_from", "generation_options", "serving_options"]

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


def generation_options(function: F) -> F:
    """Add every flag that fills a field of ``GenerationConfig``."""
    for decorate in reversed((*_GENERATION, *_SAMPLING, _SEED, *_DRAFTING, *_CONTROLLER)):
        function = decorate(function)
    return function


def serving_options(function: F) -> F:
    """Add the flags a server has: those that say how to decode, not what one reply is."""
    for decorate in reversed((_MODE, _POWER_BUDGET, *_SAMPLING, *_DRAFTING, *_CONTROLLER)):
        function = decorate(function)
    return function


def config_from(values: Mapping[str, Any]) -> GenerationConfig:
    """Return the config that parsed flags ask for.

    Raises:
        ConfigError: a value is outside its range.
    """
    return GenerationConfig(
        sampling=SamplingConfig(**_pick(SamplingConfig, values)),
        controller=ControllerConfig(**_pick(ControllerConfig, values)),
        drafting=DraftingConfig(**_pick(DraftingConfig, values)),
        **_pick(GenerationConfig, values),
    )


def _pick(owner: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    convert = {"mode": Mode, "drafter": DrafterKind, "rule": DraftRule, "objective": Objective, "stop": tuple}
    return {
        field.name: convert.get(field.name, _same)(values[field.name])
        for field in fields(owner)
        if field.name in values
    }


def _same(value: Any) -> Any:
    return value


def _flag(owner: type[Any], field_name: str, *names: str, **settings: Any) -> Decorator:
    """Return the option that fills one field; its default, and its type unless given, are the field's."""
    (field,) = (field for field in fields(owner) if field.name == field_name)
    default = None if field.default is MISSING else field.default
    settings.setdefault("default", default)
    if isinstance(default, float):
        settings.setdefault("type", FINITE)
    elif default is not None and not isinstance(default, bool | tuple):
        settings.setdefault("type", type(default))
    return click.option(*names, field_name, **settings)


def _choice(owner: type[Any], field_name: str, name: str, kind: type[Any], help_text: str) -> Decorator:
    (field,) = (field for field in fields(owner) if field.name == field_name)
    words = [member.value for member in kind]
    return _flag(owner, field_name, name, type=click.Choice(words), default=field.default.value, help=help_text)


_MODE = _choice(GenerationConfig, "mode", "--mode", Mode, "What runs: exact gives FP16's tokens, faster.")
_POWER_BUDGET = _flag(
    GenerationConfig, "power_budget_w", "--power-budget", type=FINITE, metavar="W", help="Watts to stay under."
)
_GENERATION = (
    _MODE,
    _flag(GenerationConfig, "max_new_tokens", "-n", "--max-new-tokens", help="Tokens to generate at most."),
    _flag(
        GenerationConfig, "stop", "--stop", multiple=True, type=STOP_TEXT, help="End before this text; may be repeated."
    ),
    _flag(GenerationConfig, "ignore_eos", "--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token."),
    _POWER_BUDGET,
)
_SAMPLING = (
    _flag(SamplingConfig, "temperature", "--temperature", help="0 always takes the most probable token."),
    _flag(SamplingConfig, "top_p", "--top-p", help="Sample from the most probable tokens that make up this share."),
    _flag(SamplingConfig, "top_k", "--top-k", help="Sample from this many most probable tokens; 0 is all."),
    _flag(SamplingConfig, "min_p", "--min-p", help="Drop tokens below this share of the best one's probability."),
    _flag(SamplingConfig, "repetition_penalty", "--repetition-penalty", help="Above 1 makes used tokens less likely."),
)
_SEED = _flag(SamplingConfig, "seed", "--seed", type=int, help="Sampling repeats with the same seed.  [default: drawn]")
_DRAFTING = (
    _choice(DraftingConfig, "drafter", "--drafter", DrafterKind, "Who proposes tokens for FP16 to check."),
    _flag(
        DraftingConfig,
        "draft_length",
        "--draft-length",
        type=DRAFT_LENGTH,
        default="adaptive",
        help="Tokens to draft before each check.",
    ),
    _flag(DraftingConfig, "max_draft_length", "--max-draft-length", help="Longest adaptive draft."),
    _choice(DraftingConfig, "rule", "--draft-rule", DraftRule, "What ends a draft before its length is reached."),
    _choice(DraftingConfig, "objective", "--objective", Objective, "What the adaptive length maximises."),
    _flag(
        DraftingConfig,
        "three_level",
        "--three-level/--no-three-level",
        help="The draft model drafts for the INT4 target, FP16 reads what that makes of it; where it pays.",
    ),
    _flag(DraftingConfig, "epsilon", "--epsilon", help="Share of tokens that mode bounded may get wrong."),
)
_CONTROLLER = (
    _flag(
        ControllerConfig,
        "theta_low_bits",
        "--theta-low",
        type=FINITE,
        metavar="BITS",
        help="Entropy below which layers run in INT4.  [default: the bundle's]",
    ),
    _flag(
        ControllerConfig,
        "theta_high_bits",
        "--theta-high",
        type=FINITE,
        metavar="BITS",
        help="Entropy above which they run in FP16.  [default: the bundle's]",
    ),
    _flag(ControllerConfig, "hold_tokens", "--hold", metavar="TOKENS", help="Tokens between two changes of gear."),
    _flag(ControllerConfig, "window", "--window", metavar="TOKENS", help="Tokens whose entropy is averaged."),
    _flag(ControllerConfig, "middle_gears", "--middle-gears", help="Gears between all INT4 and all FP16."),
    _flag(
        ControllerConfig,
        "gated_layers",
        "--gated-layers",
        type=int,
        metavar="N",
        help="Layers that INT4 may run, the least sensitive first.  [default: all, and the head]",
    ),
)
