"""``edgeprec serve``: an OpenAI-compatible HTTP server and a web page."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from edgeprec.cli.common import quiet_option
from edgeprec.cli.options import config_from, serving_options
from edgeprec.cli.parameter_types import FINITE
from edgeprec.cli.session_options import bundle_argument, open_session, replayed_file, session_options
from edgeprec.runtime.service.settings import ServiceSettings

__all__ = ["serve_command"]

F = TypeVar("F", bound=Callable[..., Any])


def _setting(name: str, *flags: str, **more: Any) -> Callable[[Any], Any]:
    """Return the option that fills one field of the settings; its default is the field's."""
    (field,) = (field for field in fields(ServiceSettings) if field.name == name)
    more.setdefault("default", None if field.default in (None, ()) else field.default)
    return click.option(*flags, name, **more)


_FLAGS = (
    _setting("host", "--host", metavar="ADDRESS", help="Where to listen; beyond this machine an API key is needed."),
    _setting("port", "--port", type=click.IntRange(0, 65535), help="Port; 0 takes any free one."),
    _setting(
        "api_key_file",
        "--api-key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keys of which clients must show one, one a line.",
    ),
    _setting("insecure", "--insecure", is_flag=True, help="Listen for other machines without a key."),
    _setting(
        "cors_origins", "--cors-origin", multiple=True, metavar="ORIGIN", help="Web page that may call; repeatable."
    ),
    click.option("--model-name", metavar="NAME", help="What clients call the model.  [default: the bundle's name]"),
    _setting("queue", "--queue", type=click.IntRange(min=0), metavar="N", help="Requests that may wait."),
    _setting(
        "max_tokens",
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens of a reply at most.  [default: what the context holds]",
    ),
    _setting("max_body_bytes", "--max-body-bytes", metavar="N", help="Size of a request at most."),
    _setting("body_seconds", "--body-seconds", type=FINITE, metavar="S", help="Time for a request to arrive."),
    _setting("stall_seconds", "--stall-seconds", type=FINITE, metavar="S", help="Time a reader may stand still."),
    _setting("request_seconds", "--request-seconds", type=FINITE, metavar="S", help="Time a generation may take."),
    _setting("drain_seconds", "--drain-seconds", type=FINITE, metavar="S", help="Time to finish on SIGTERM."),
    _setting(
        "trace",
        "--trace",
        type=click.Path(path_type=Path),
        metavar="FILE.jsonl",
        help="Add every reply's tokens and rounds.",
    ),
)


def _service_options(function: F) -> F:
    for decorate in reversed(_FLAGS):
        function = decorate(function)
    return function


@click.command("serve", short_help="Answer OpenAI's API over HTTP, with a web page.")
@bundle_argument
@_service_options
@serving_options
@session_options
@quiet_option
@click.pass_context
def serve_command(ctx: click.Context, /, **values: Any) -> None:
    """Serve BUNDLE on http://127.0.0.1:8080: /v1/chat/completions, /v1/completions, /v1/models, and a page at /.

    Decoding flags are what a request gets that says nothing else. SIGTERM finishes what runs and exits with 0.

    \b
    Examples:
      edgeprec serve pair.edgeprec
      edgeprec serve pair.edgeprec --host 0.0.0.0 --api-key-file keys.txt --queue 16
      edgeprec serve pair.edgeprec --mode fp16 --temperature 0.7 --max-tokens 512
    """
    from edgeprec.cli.ignored_flags import warn_of_flags_left_to_requests
    from edgeprec.runtime.service.packages import require_service_packages

    settings = _settings(values)
    warn_of_flags_left_to_requests(ctx)
    _check_trace(values)
    require_service_packages()
    from edgeprec.runtime.service.notify import Notifier
    from edgeprec.runtime.service.server import run_service

    run_service(
        lambda: open_session(values["bundle"], values),
        settings,
        notifier=Notifier.from_environment(os.environ),
        say=_say if not values["quiet"] else lambda _text: None,
    )


def _settings(values: dict[str, Any]) -> ServiceSettings:
    names = {field.name for field in fields(ServiceSettings)} & values.keys() - {"model_name"}
    bundle: Path = values["bundle"]
    return ServiceSettings(
        model_name=values["model_name"] or bundle.resolve().name.removesuffix(".edgeprec"),
        generation=config_from(values),
        **{name: values[name] for name in names},
    )


def _check_trace(values: dict[str, Any]) -> None:
    from edgeprec.cli.output_guard import require_apart

    inputs = {"--api-key-file": values["api_key_file"], "--sensor": replayed_file(values["sensor"])}
    require_apart({"--trace": values["trace"]}, inputs=inputs, bundle=values["bundle"])


def _say(text: str) -> None:
    click.echo(f"edgeprec: {text}", err=True)
