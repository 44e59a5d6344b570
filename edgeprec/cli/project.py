"""``edgeprec project``: joules and money of a load, from a measured batch sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.common import json_option
from edgeprec.cli.parameter_types import FINITE

if TYPE_CHECKING:
    from edgeprec.bench_results import Sweep
    from edgeprec.projection import Load, Projection, Value

__all__ = ["project_command"]


class BatchShares(click.ParamType):  # type: ignore[type-arg]  # generic only in click's newest versions
    """``8`` or ``1:0.5,8:0.5``."""

    name = "B[:SHARE],.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[float, float]:
        """Return batch -> share of the tokens."""
        if isinstance(value, dict):
            return value
        parts = [part.partition(":") for part in str(value).split(",")]
        try:
            shares = {float(batch): float(share) if colon else 1.0 for batch, colon, share in parts}
        except ValueError:
            self.fail(f"{value!r} is no batch such as 8, nor batches with shares such as 1:0.5,8:0.5", param, ctx)
        if len(shares) < len(parts):
            self.fail(f"{value!r} names a batch twice", param, ctx)
        return shares


@click.command("project", short_help="Project joules and money from a measured batch sweep.")
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--requests-per-s", type=FINITE, required=True, help="Requests that come every second.")
@click.option("--tokens", type=FINITE, default=256.0, help="New tokens of a request.")
@click.option(
    "--batch", type=BatchShares(), default="1", help="Sequences decoded at once, or several with their shares."
)
@click.option("--price-per-kwh", type=FINITE, metavar="MONEY", help="Price of a kilowatt-hour, in any currency.")
@json_option
@click.pass_context
def project_command(ctx: click.Context, /, **values: Any) -> None:
    """Project what a load takes on machines like the one measured in RESULTS, the lines of edgeprec bench.

    Only measured batches and what lies between them: a batch outside is refused with the nearest one measured. Every
    number names the lines it rests on.

    \b
    Examples:
      edgeprec project results.jsonl --requests-per-s 0.5 --tokens 300 --price-per-kwh 0.30
      edgeprec project results.jsonl --requests-per-s 20 --batch 8:0.25,16:0.5,32:0.25 --json
    """
    from edgeprec.bench_results import read_sweeps
    from edgeprec.cli.json_output import print_json
    from edgeprec.cli.render import visible
    from edgeprec.errors import ConfigError
    from edgeprec.projection import Load, project

    load = Load(
        requests_per_s=values["requests_per_s"],
        tokens_per_request=values["tokens"],
        batches=values["batch"],
        price_per_kwh=values["price_per_kwh"],
    )
    sweeps, remarks = read_sweeps(_read(values["results"]), where=str(values["results"]))
    projected: list[tuple[Sweep, Projection]] = []
    refused: dict[str, list[str]] = {}
    for sweep in sweeps:
        try:
            projected.append((sweep, project(sweep.measured, load)))
        except ConfigError as error:
            refused.setdefault("; ".join([str(error), *sweep.left_out]), []).append(sweep.name)
    reasons = [f"{_named(names)}: {reason}" for reason, names in refused.items()]
    if not projected:
        raise ConfigError("; ".join(reasons))
    if values["as_json"]:
        print_json(_to_json(load, projected, [*reasons, *remarks]))
        return
    click.echo("\n".join(visible(line) for sweep, found in projected for line in _lines(sweep, found, load)))
    for remark in (*reasons, *remarks):
        click.echo(visible(f"left out: {remark}"), err=True)


def _named(names: Sequence[str]) -> str:
    """Return the first of several configurations that share a reason, and how many there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _read(path: Path) -> str:
    from edgeprec.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the results {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the results {path} are not UTF-8 at byte {error.start}: expected lines of JSON") from error


def _to_json(load: Load, projected: Sequence[tuple[Sweep, Projection]], remarks: Sequence[str]) -> dict[str, Any]:
    return {
        "load": asdict(load) | {"batches": {f"{batch:g}": share for batch, share in load.batches.items()}},
        "projections": [
            {
                "configuration": sweep.name,
                "device": _device(sweep),
                "power_mode": sweep.settings["device.power_mode"],
                "source": sweep.settings["energy.source"],
                "rail": sweep.settings["energy.rail"],
                "scope": sweep.settings["energy.scope"],
                "settings": dict(sweep.settings),
                **asdict(found),
            }
            for sweep, found in projected
        ],
        "left_out": [*remarks, *(note for sweep, _ in projected for note in sweep.left_out)],
    }


def _lines(sweep: Sweep, found: Projection, load: Load) -> Iterator[str]:
    yield sweep.name
    rail, scope = sweep.settings["energy.rail"], sweep.settings["energy.scope"]
    yield f"  device        {_device(sweep)}{_gpus(sweep)}, energy of {f'{rail} ({scope})' if scope else rail}"
    yield f"  load          {load.tokens_per_s:g} new tokens/s"
    for estimate in found.estimates:
        origins = " and ".join(point.origin for point in estimate.rests_on)
        how = "measured in" if len(estimate.rests_on) == 1 else "between"
        yield (
            f"  batch {estimate.batch:<7g} {_shown(estimate.tokens_per_s, 'tokens/s')}, "
            f"{_shown(estimate.joules_per_token, 'J/token')}, {estimate.share:.0%} of the tokens; {how} {origins}"
        )
    yield f"  energy        {_shown(found.joules_per_token, 'J/token')} while busy"
    machines = "1 machine" if found.machines == 1 else f"{found.machines} machines"
    yield f"  machines      {machines} of {_shown(found.tokens_per_s_of_one, 'tokens/s')}, busy {found.busy_share:.1%}"
    rest = "the rest of the time was not measured" if found.idle_watts is None else f"{found.idle_watts:.4g} W at rest"
    yield f"  per day       {_shown(found.kwh_per_day, 'kWh')}, {rest}"
    if found.money_per_day is not None and found.money_per_million_tokens is not None:
        yield (
            f"  money         {_shown(found.money_per_day, 'a day')}, "
            f"{_shown(found.money_per_million_tokens, 'a million tokens')} at {load.price_per_kwh:g} a kWh"
        )
    yield from (f"  note          {note}" for note in found.notes)
    yield from (f"  not used      {note}" for note in sweep.left_out)


def _device(sweep: Sweep) -> str:
    return str(sweep.settings["device.name"] or "unknown device")


def _gpus(sweep: Sweep) -> str:
    """Return the GPUs whose names are not the device's."""
    found = sweep.settings["device.gpus"]
    names = [str(name) for name in found if name != _device(sweep)] if isinstance(found, list) else []
    counted = (f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items())
    return f" with {', '.join(counted)}" if names else ""


def _shown(value: Value, unit: str) -> str:
    doubt = "± unknown (one repeat)" if value.plus_minus is None else f"± {value.plus_minus:.2g}"
    return f"{value.value:.4g} {doubt} {unit}"
