"""The flags of a generation and the configuration they become."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
import pytest

from edgeprec.cli.common import options_of
from edgeprec.cli.options import config_from, generation_options
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
from edgeprec.errors import ConfigError

PARTS = {"sampling": SamplingConfig, "controller": ControllerConfig, "drafting": DraftingConfig}


@generation_options
def _take_all(**values: Any) -> dict[str, Any]:
    return values


COMMAND = click.command()(_take_all)


def parse(*arguments: str) -> GenerationConfig:
    """Return the config of a command line."""
    return config_from(COMMAND.main(list(arguments), standalone_mode=False))


def test_no_flags_give_the_default_config() -> None:
    """A default is written once, in the dataclass."""
    assert parse() == GenerationConfig()


def test_every_field_has_a_flag() -> None:
    """A setting that Python code can make can be made on the command line."""
    names = {option.name for option in options_of(COMMAND).values()}
    wanted = {field.name for field in fields(GenerationConfig) if field.name not in PARTS}
    for owner in PARTS.values():
        wanted |= {field.name for field in fields(owner)}
    assert names == wanted


@pytest.mark.parametrize(
    ("arguments", "part", "name", "expected"),
    [
        ("--mode gated", None, "mode", Mode.GATED),
        ("-n 7", None, "max_new_tokens", 7),
        ("--stop A --stop B", None, "stop", ("A", "B")),
        ("--ignore-eos", None, "ignore_eos", True),
        ("--power-budget 12.5", None, "power_budget_w", 12.5),
        ("--temperature 0.7", "sampling", "temperature", 0.7),
        ("--top-p 0.9", "sampling", "top_p", 0.9),
        ("--top-k 40", "sampling", "top_k", 40),
        ("--min-p 0.05", "sampling", "min_p", 0.05),
        ("--repetition-penalty 1.1", "sampling", "repetition_penalty", 1.1),
        ("--seed 18446744073709551615", "sampling", "seed", 2**64 - 1),
        ("--drafter ngram", "drafting", "drafter", DrafterKind.NGRAM),
        ("--draft-length 5", "drafting", "draft_length", 5),
        ("--draft-length adaptive", "drafting", "draft_length", None),
        ("--max-draft-length 4", "drafting", "max_draft_length", 4),
        ("--draft-rule svip", "drafting", "rule", DraftRule.SVIP),
        ("--objective energy", "drafting", "objective", Objective.ENERGY),
        ("--three-level", "drafting", "three_level", True),
        ("--no-three-level", "drafting", "three_level", False),
        ("--epsilon 0.02", "drafting", "epsilon", 0.02),
        ("--theta-low 0.4", "controller", "theta_low_bits", 0.4),
        ("--theta-high 2", "controller", "theta_high_bits", 2.0),
        ("--hold 8", "controller", "hold_tokens", 8),
        ("--window 5", "controller", "window", 5),
        ("--middle-gears 2", "controller", "middle_gears", 2),
        ("--gated-layers 4", "controller", "gated_layers", 4),
    ],
)
def test_a_flag_fills_its_field(arguments: str, part: str | None, name: str, expected: object) -> None:
    """Each flag reaches the one field it is named for."""
    config = parse(*arguments.split())
    owner = config if part is None else getattr(config, part)
    assert getattr(owner, name) == expected
    assert type(getattr(owner, name)) is type(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--top-p 1.5", "top_p is 1.5, expected above 0, at most 1"),
        ("--temperature -1", "temperature is -1.0, expected 0 to 10"),
        ("-n 0", "max_new_tokens is 0, expected 1 or more"),
        ("--draft-length 99", "draft_length is 99, expected adaptive or 0 to 15"),
        ("--theta-low 3 --theta-high 2", "theta_low_bits is 3.0, expected at most theta_high_bits 2.0"),
    ],
)
def test_a_value_out_of_range_is_refused(arguments: str, message: str) -> None:
    """The dataclass checks; the message names field, value and range."""
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        parse(*arguments.split())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top-p", "min-p", "repetition-penalty", "epsilon", "theta-low", "theta-high", "power-budget"],
)
def test_a_number_is_finite(name: str, value: str) -> None:
    """No range says so: infinite watts are more than none, and nothing is larger or smaller than NaN."""
    with pytest.raises(click.BadParameter, match=f"'{value}' is not a finite number"):
        parse(f"--{name}={value}")


def test_help_shows_no_range_where_there_is_none() -> None:
    """A finite number has no bounds to show."""
    assert "None]" not in COMMAND.get_help(click.Context(COMMAND))
