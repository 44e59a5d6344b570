"""A flag beats the environment, the environment beats the file, and what nobody knows is an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli.common import all_flags
from edgeprec.cli.settings import read_settings_file, unknown_variables, variable_of
from edgeprec.errors import ConfigError

RUN = ("run", "pair.edgeprec", "-p", "hello", "--quiet")


def temperature(fake_api: Any) -> float:
    """Return the temperature of the last generation asked for."""
    return float(fake_api.session.asked[-1][1].sampling.temperature)


def test_flag_beats_environment_beats_file(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """The nearest source wins, as the documentation promises."""
    file = tmp_path / "edgeprec.toml"
    file.write_text("temperature = 0.1\n")
    invoke(*RUN)
    assert temperature(fake_api) == 0.0
    invoke(*RUN, "--config", str(file))
    assert temperature(fake_api) == 0.1
    invoke(*RUN, "--config", str(file), env={"EDGEPREC_TEMPERATURE": "0.2"})
    assert temperature(fake_api) == 0.2
    invoke(*RUN, "--config", str(file), "--temperature", "0.3", env={"EDGEPREC_TEMPERATURE": "0.2"})
    assert temperature(fake_api) == 0.3


def test_the_settings_file_can_be_named_by_the_environment(
    fake_api: Any, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """A service sets one variable and keeps the rest in the file."""
    file = tmp_path / "edgeprec.toml"
    file.write_text('[run]\nstop = ["END", "two words"]\nignore-eos = true\ndraft-length = 5\n')
    assert invoke(*RUN, env={"EDGEPREC_CONFIG": str(file)}).code == 0
    config = fake_api.session.asked[-1][1]
    assert config.stop == ("END", "two words")
    assert config.ignore_eos
    assert config.drafting.draft_length == 5


def test_a_commands_table_beats_the_top(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """What is said of one command is more particular than what is said of all."""
    file = tmp_path / "edgeprec.toml"
    file.write_text("temperature = 0.1\n[run]\ntemperature = 0.4\n[chat]\ntemperature = 0.9\n")
    invoke(*RUN, "--config", str(file))
    assert temperature(fake_api) == 0.4


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("temprature = 1", "key 'temprature' is no flag of any command: did you mean temperature?"),
        ("[run]\nquantizer = 'rtn'", "[run] sets 'quantizer', and run has no flag --quantizer"),
        ("[rum]\nmode = 'exact'", "table [rum] is no command: did you mean run?"),
        ("temperature = [1]", "is [1], expected a text or a number"),
        ("ignore-eos = 'yes'", "is 'yes', expected true or false"),
        ("stop = 'END'", "is 'END', expected a list of texts"),
        ("temperature = ", "is not valid TOML"),
        ("temperature = 'warm'", "'warm' is not a valid float"),
        ("mode = 'fast'", "'fast' is not one of 'exact'"),
    ],
)
def test_a_wrong_settings_file_is_refused(
    fake_api: Any, invoke: Callable[..., Any], tmp_path: Path, content: str, expected: str
) -> None:
    """A typing slip in a file must not pass for a setting."""
    file = tmp_path / "edgeprec.toml"
    file.write_text(content)
    outcome = invoke(*RUN, "--config", str(file))
    assert outcome.code == 2
    assert expected in outcome.err
    assert not fake_api.loads


def test_an_absent_settings_file_is_refused(invoke: Callable[..., Any]) -> None:
    """A file that was asked for must be there."""
    outcome = invoke(*RUN, "--config", "absent.toml")
    assert outcome.code == 2
    assert "absent.toml cannot be read: No such file" in outcome.err


def test_an_unknown_variable_is_refused(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A misspelt variable would otherwise be ignored without a word."""
    outcome = invoke(*RUN, env={"EDGEPREC_TEMPERTURE": "1"})
    assert outcome.code == 2
    assert "EDGEPREC_TEMPERTURE, which is no setting of EdgePrec: did you mean EDGEPREC_TEMPERATURE?" in outcome.err
    assert not fake_api.loads


def test_stop_texts_in_a_variable_stand_one_per_line(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A stop text may hold spaces, so spaces cannot separate them."""
    invoke(*RUN, env={"EDGEPREC_STOP": "the end\n###"})
    assert fake_api.session.asked[-1][1].stop == ("the end", "###")


def test_every_flag_has_a_variable_of_its_own() -> None:
    """Two flags of one command must not share a variable, or one of them could not be set."""
    for command, options in all_flags().items():
        variables = [variable_of(name) for name in options]
        assert len(set(variables)) == len(variables), command
        assert [option.envvar for option in options.values()] == variables, command


def test_known_variables_are_no_error() -> None:
    """The cache folder is a setting without a flag."""
    flags = all_flags()
    environ = {variable_of(name): "" for options in flags.values() for name in options}
    assert unknown_variables({**environ, "EDGEPREC_CACHE": "", "PATH": ""}, flags) == {}


def test_a_settings_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """A binary file gives the same sentence as broken TOML."""
    file = tmp_path / "edgeprec.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_settings_file(file, all_flags())
