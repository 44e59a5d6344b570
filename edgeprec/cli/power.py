"""``edgeprec power``: the board's rails now, once or live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeprec.cli.common import json_option
from edgeprec.cli.parameter_types import FiniteRange
from edgeprec.cli.session_options import sensor_option
from edgeprec.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from edgeprec.cli.power_watch import Show
    from edgeprec.devices.detect import Detection

__all__ = ["power_command"]


@click.command("power", short_help="Show the power of every rail, now or live.")
@sensor_option
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.01),
    default=1.0,
    metavar="S",
    help="Seconds between readings; a counter's power is the mean over them.",
)
@click.option("--seconds", type=FiniteRange(min=0), metavar="S", help="End --watch after so long.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a trace, for --sensor replay:FILE, at the sensor's own period.",
)
@json_option
def power_command(
    sensor: str, watch: bool, interval_s: float, seconds: float | None, record: Path | None, as_json: bool
) -> None:
    """Show the power of every rail with its uncertainty, the total and what it covers.

    Where nothing can be measured it says why and exits with 0; a sensor asked for by name that fails is exit code 5,
    and so is --record with nothing to record.
    With --watch --json each reading is one JSON object on a line of its own.

    \b
    Examples:
      edgeprec power
      edgeprec power --watch --sensor simulated:agx-orin
      edgeprec power --watch --seconds 60 --record trace.jsonl
      edgeprec power --json | jq .total.power_mw
    """
    from edgeprec.cli.power_reading import PowerProbe
    from edgeprec.cli.power_watch import Pause, read_once
    from edgeprec.cli.power_watch import watch as watch_power
    from edgeprec.devices.detect import detect
    from edgeprec.devices.recording import RecordingSensor

    if seconds is not None and not watch:
        raise ConfigError("--seconds ends --watch, which was not given: add --watch")
    if record is not None:
        _check_new(record)
    with ExitStack() as opened:
        found = detect(sensor)
        opened.callback(found.sensor.close)
        is_recorded = record is not None and bool(found.sensor.rails)
        device = RecordingSensor(found.sensor, record) if record is not None and is_recorded else found.sensor
        opened.callback(device.close)
        show = opened.enter_context(_showing(found, as_json=as_json, is_live=watch))
        probe, pause = PowerProbe(device), Pause(interval_s, device if is_recorded else None)
        if record is not None and not is_recorded:
            raise DeviceError(f"--record {record} has nothing to record: {found.note or 'the sensor has no rails'}")
        if not device.rails:
            show(probe.unread(device.total_note or "the sensor has no rails"))
            return
        if not watch:
            show(read_once(probe, pause))
            return
        try:
            watch_power(probe, show, pause, seconds=seconds)
        except DeviceError:
            if not sensor.startswith("replay:"):  # every trace has an end, which is no failure
                raise


def _check_new(path: Path) -> None:
    """Check that a trace can be written to ``path``.

    Raises:
        ConfigError: it cannot, or a file is there already.
    """
    from edgeprec.cli.output_file import check_writable

    check_writable(path, flag="--record")
    if path.exists():
        raise ConfigError(f"--record {path} exists already: choose another name")


@contextmanager
def _showing(found: Detection, *, as_json: bool, is_live: bool) -> Iterator[Show]:
    """Give a function that shows a reading: a line of JSON, a table, or a table that is updated in place."""
    from edgeprec.cli.json_output import print_json
    from edgeprec.devices.jetson_identity import read_identity
    from edgeprec.devices.power_mode import read_power_modes

    identity = read_identity(found.sysfs)
    board = None if identity is None else identity.name
    mode = None if identity is None else read_power_modes(found.sysfs).label
    if as_json:
        yield lambda reading: print_json({"board": board, "power_mode": mode, **reading.to_json()})
        return
    from rich.console import Console
    from rich.live import Live

    from edgeprec.cli.power_table import PowerTable

    about = [board, f"sensor {found.sensor.source}", None if mode is None else f"power mode {mode}"]
    table = PowerTable(", ".join(part for part in about if part), has_extremes=is_live)
    console = Console()
    if not is_live or not console.is_terminal:
        yield lambda reading: console.print(table.render(reading))
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda reading: live.update(table.render(reading), refresh=True)
