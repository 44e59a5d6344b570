"""What every command has: ``--config``, ``-v``, and an ``EDGEPREC_*`` variable for each of its flags."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from edgeprec.cli.journal import is_journal, with_priority
from edgeprec.cli.settings import flag_name, read_settings_file, unknown_variables, variable_of
from edgeprec.errors import ConfigError

__all__ = ["add_common_options", "all_flags", "json_option", "options_of", "quiet_option"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="Leave out progress and statistics.")


def add_common_options(command: click.Command) -> click.Command:
    """Give ``command`` the options every command has, and every option of it its environment variable."""
    command.params += [_config_option(), _verbose_option()]
    for name, option in options_of(command).items():
        option.envvar = variable_of(name)
    return command


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return flag's long name -> option."""
    return {flag_name(option): option for option in command.params if isinstance(option, click.Option)}


def all_flags() -> dict[str, dict[str, click.Option]]:
    """Return command name -> its options. Imports every command's file."""
    from edgeprec.cli.group import COMMANDS, load_command

    return {name: options_of(load_command(name)) for name in COMMANDS}


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_apply_settings,
        metavar="FILE",
        help="TOML file with values for flags; a flag and the environment beat it.",
    )


def _verbose_option() -> click.Option:
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        show_default=False,
        expose_value=False,
        callback=_set_verbosity,
        help="Say more on standard error; -vv adds tracebacks.",
    )


def _apply_settings(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse variables nobody knows, and let the file stand in for defaults. ``doctor`` reports them instead."""
    if path is None and not any(name.startswith("EDGEPREC_") for name in os.environ):
        return None
    flags = all_flags()
    unknown = unknown_variables(os.environ, flags)
    if unknown and ctx.info_name != "doctor":
        raise ConfigError(next(iter(unknown.values())))
    if path is not None:
        ctx.meta["edgeprec.settings_file"] = path
        ctx.default_map = read_settings_file(path, flags).default_map(str(ctx.info_name), flags)
    return path


def _set_verbosity(_ctx: click.Context, _param: click.Parameter, count: int) -> int:
    logger = logging.getLogger("edgeprec")
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(count, 2)])
    if not any(isinstance(handler, _EchoHandler) for handler in logger.handlers):
        logger.addHandler(_EchoHandler())
    return count


class _EchoHandler(logging.Handler):
    """Write records to what standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; the journal is also told its priority."""
        text = f"edgeprec: {record.levelname.lower()}: {self.format(record)}"
        click.echo(with_priority(text, record.levelno) if is_journal(os.environ) else text, err=True)
