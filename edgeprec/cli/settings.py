"""Where a flag's value comes from: the command line, then ``EDGEPREC_*`` variables, then ``--config FILE``.

The file is TOML. A key is a flag's long name; at the top it holds for every command that has the flag, in a table named
after a command for that one alone. A key or variable that no flag answers to is an error: a typing slip must not
pass for a setting.

    temperature = 0.7
    [run]
    draft-length = 5
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from edgeprec.errors import ConfigError

__all__ = [
    "PREFIX",
    "Flags",
    "Origin",
    "SettingsFile",
    "flag_name",
    "read_settings_file",
    "unknown_variables",
    "variable_of",
]

PREFIX = "EDGEPREC_"
_OTHER_VARIABLES = frozenset({"EDGEPREC_CACHE"})

Flags = Mapping[str, Mapping[str, click.Option]]
"""Command name -> flag's long name -> the option."""


class Origin(StrEnum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


def flag_name(option: click.Option) -> str:
    """Return the long name without its dashes: ``draft-length``."""
    return next(name for name in option.opts if name.startswith("--"))[2:]


def variable_of(name: str) -> str:
    """Return the environment variable of a flag's long name."""
    return PREFIX + name.upper().replace("-", "_")


def unknown_variables(environ: Mapping[str, str], flags: Flags) -> dict[str, str]:
    """Return every ``EDGEPREC_*`` variable no flag answers to -> a sentence that says so."""
    known = {variable_of(name) for options in flags.values() for name in options} | _OTHER_VARIABLES
    return {
        name: f"the environment sets {name}, which is no setting of EdgePrec{_suggest(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    }


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The checked content of a ``--config`` file: per command, flag's long name -> value."""

    path: Path
    values: Mapping[str, Mapping[str, Any]]

    def default_map(self, command: str, flags: Flags) -> dict[str, Any]:
        """Return parameter name -> value for one command, as click takes it."""
        options = flags[command]
        return {str(options[name].name): value for name, value in self.values.get(command, {}).items()}


def read_settings_file(path: Path, flags: Flags) -> SettingsFile:
    """Read and check a settings file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has a key that is no flag or a value of a kind no flag takes.
    """
    document = _parse(path)
    values: dict[str, dict[str, Any]] = {command: {} for command in flags}
    for key, value in document.items():
        if not isinstance(value, dict):
            for command in _commands_with(key, flags, path):
                values[command][key] = _checked(flags[command][key], value, f"{path}: key {key!r}")
    for command, table in _tables(document, flags, path):
        for key, value in table.items():
            if key not in flags[command]:
                near = _suggest(key, flags[command])
                raise ConfigError(f"{path}: [{command}] sets {key!r}, and {command} has no flag --{key}{near}")
            values[command][key] = _checked(flags[command][key], value, f"{path}: [{command}] key {key!r}")
    return SettingsFile(path, values)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path} is not valid TOML: {error}") from error


def _commands_with(key: str, flags: Flags, path: Path) -> list[str]:
    commands = [command for command, options in flags.items() if key in options]
    if not commands:
        known = {name for options in flags.values() for name in options}
        raise ConfigError(f"{path}: key {key!r} is no flag of any command{_suggest(key, known)}")
    return commands


def _tables(document: Mapping[str, Any], flags: Flags, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in document.items():
        if not isinstance(value, dict):
            continue
        if key not in flags:
            raise ConfigError(f"{path}: table [{key}] is no command{_suggest(key, flags)}")
        yield key, value


def _checked(option: click.Option, value: Any, where: str) -> Any:
    expected, is_right = _kind_of(option)
    if not is_right(value):
        raise ConfigError(f"{where} is {value!r}, expected {expected}")
    return value


def _kind_of(option: click.Option) -> tuple[str, Callable[[Any], bool]]:
    if option.is_flag:
        return "true or false", lambda value: isinstance(value, bool)
    if option.multiple:
        return "a list of texts", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
    return "a text or a number", lambda value: isinstance(value, str | int | float) and not isinstance(value, bool)


def _suggest(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""
