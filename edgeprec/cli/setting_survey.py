"""What every flag is set to outside the command line, and where that comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgeprec.cli.settings import Flags, Origin, SettingsFile, variable_of

__all__ = ["SettingFinding", "survey_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFinding:
    """``where`` names the variable or the file."""

    command: str
    flag: str
    value: Any
    origin: Origin
    where: str


def survey_settings(flags: Flags, environ: Mapping[str, str], file: SettingsFile | None) -> Iterator[SettingFinding]:
    """Give every flag of every command with the value it has when the command line does not set it."""
    for command, options in flags.items():
        for name, option in options.items():
            variable = variable_of(name)
            in_file = {} if file is None else file.values.get(command, {})
            if variable in environ:
                found = environ[variable], Origin.ENVIRONMENT, variable
            elif file is not None and name in in_file:
                found = in_file[name], Origin.FILE, str(file.path)
            else:
                found = option.to_info_dict()["default"], Origin.DEFAULT, ""
            value, origin, where = found
            yield SettingFinding(command=command, flag=name, value=value, origin=origin, where=where)
