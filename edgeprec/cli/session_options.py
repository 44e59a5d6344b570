"""The flags that say which bundle is loaded, on what, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgeprec.runtime.session import Session

__all__ = ["ENGINES", "bundle_argument", "open_session", "replayed_file", "sensor_option", "session_options"]

F = TypeVar("F", bound=Callable[..., Any])
ENGINES = ("auto", "onnxruntime", "torch", "tensorrt")

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
sensor_option = click.option(
    "--sensor",
    default="auto",
    metavar="SENSOR",
    help="Where power is read: auto, jetson, jtop, nvml, rapl, replay:FILE, simulated:BOARD or none.",
)
_OPTIONS = (
    click.option("--engine", type=click.Choice(ENGINES), default="auto", help="What computes the model."),
    click.option(
        "--provider", metavar="NAME", help="What the engine runs on: cpu, or cuda with torch.  [default: by device]"
    ),
    click.option(
        "--context",
        "context_tokens",
        type=click.IntRange(min=2),
        metavar="TOKENS",
        help="Room for prompt and reply.  [default: by model]",
    ),
    click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]"),
    sensor_option,
)


def session_options(function: F) -> F:
    """Add the flags ``open_session`` reads."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def replayed_file(sensor: str) -> Path | None:
    """Return the trace that ``--sensor replay:FILE`` reads, None with any other sensor."""
    kind, _, name = sensor.partition(":")
    return Path(name) if kind == "replay" and name else None


def open_session(bundle: Path, values: Mapping[str, Any]) -> Session:
    """Load a bundle as the flags say; a flag that was not given leaves the default of ``edgeprec.load``.

    ``slots`` among the values is how many sequences run together.
    """
    from edgeprec.api import load

    names = ("engine", "provider", "context_tokens", "threads", "sensor")
    given = {name: values[name] for name in names if values.get(name) is not None}
    return load(bundle, **given, sequences=values.get("slots", 1))
