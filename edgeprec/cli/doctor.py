"""``edgeprec doctor``: what this machine offers, what is missing, and where settings come from."""

from __future__ import annotations

import os

import click

from edgeprec.cli.common import all_flags, json_option
from edgeprec.cli.session_options import sensor_option

__all__ = ["doctor_command"]


@click.command("doctor", short_help="Show machine, engines, sensors and settings.")
@sensor_option
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, /, sensor: str, as_json: bool) -> None:
    """Show the machine, its engines and power sensors, and every setting with its origin.

    Always exits with 0; what is missing is said in words, and as "degraded" in JSON.

    \b
    Examples:
      edgeprec doctor
      edgeprec doctor --json | jq .missing
      EDGEPREC_THREADS=2 edgeprec doctor --config edgeprec.toml
    """
    from edgeprec.cli.diagnosis import diagnose, in_words
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.settings import read_settings_file

    flags = all_flags()
    path = ctx.meta.get("edgeprec.settings_file")
    file = read_settings_file(path, flags) if path else None
    found = diagnose(sensor=sensor, flags=flags, environ=os.environ, file=file)
    if as_json:
        print_json(found)
    else:
        click.echo(in_words(found))
