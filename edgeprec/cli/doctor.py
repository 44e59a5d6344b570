"""``edgeprec doctor``: what this machine offers, what is missing, and where settings come from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgeprec.cli.common import all_flags, json_option
from edgeprec.cli.session_options import sensor_option
from edgeprec.errors import ConfigError

if TYPE_CHECKING:
    from edgeprec.cli.settings import Flags, SettingsFile

__all__ = ["doctor_command"]


@click.command("doctor", short_help="Show machine, engines, sensors and settings.")
@sensor_option
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, /, sensor: str, as_json: bool) -> None:
    """Show the machine, its engines and power sensors, and every setting with its origin.

    Exits with 0 whatever it finds, also where the environment or --config names a sensor that cannot be used; what is
    missing is said in words, and as "degraded" in JSON.

    \b
    Examples:
      edgeprec doctor
      edgeprec doctor --json | jq .missing
      EDGEPREC_THREADS=2 edgeprec doctor --config edgeprec.toml
    """
    from edgeprec.cli.diagnosis import in_words
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.settings import read_settings_file

    flags = all_flags()
    path = ctx.meta.get("edgeprec.settings_file")
    file = read_settings_file(path, flags) if path else None
    is_asked = ctx.get_parameter_source("sensor") is ParameterSource.COMMANDLINE
    try:
        found = _diagnose(sensor, flags, file)
    except ConfigError as error:
        if is_asked:
            raise
        found = _diagnose("auto", flags, file)
        found |= {"missing": [f"the setting --sensor cannot be used: {error}", *found["missing"]], "degraded": True}
    if as_json:
        print_json(found)
    else:
        click.echo(in_words(found))


def _diagnose(sensor: str, flags: Flags, file: SettingsFile | None) -> dict[str, Any]:
    from edgeprec.cli.diagnosis import diagnose

    return diagnose(sensor=sensor, flags=flags, environ=os.environ, file=file)
