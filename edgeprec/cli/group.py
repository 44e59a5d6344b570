"""The command ``edgeprec``: knows the names of its commands, and imports a command's file only when it is called."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module

import click

from edgeprec.cli.color import wants_color
from edgeprec.cli.common import add_common_options
from edgeprec.cli.errors import run_and_report
from edgeprec.cli.streams import mend_streams

__all__ = ["COMMANDS", "LazyGroup", "cli", "load_command", "main"]

COMMANDS = {
    "demo": "Fetch the demo model, export it, run it and write a report.",
    "export": "Turn a checkpoint into a bundle.",
    "build": "Build TensorRT engines into a bundle.",
    "run": "Continue a prompt.",
    "chat": "Talk with the model.",
    "serve": "Answer OpenAI's API over HTTP, with a web page.",
    "service": "Keep a bundle served by systemd.",
    "distill": "Train a small draft for a target.",
    "inspect": "Show what is inside a bundle.",
    "verify": "Check every byte of a bundle.",
    "eval": "Measure how faithful INT4 and the modes are, and which drafts pay.",
    "bench": "Measure speed, acceptance and joules.",
    "project": "Project joules and money from a measured batch sweep.",
    "certify": "Check that exact decoding gives FP16's tokens.",
    "power": "Show the power of every rail, now or live.",
    "doctor": "Show machine, engines, sensors and settings.",
}


@cache
def load_command(name: str) -> click.Command:
    """Import the file of one command and return the command, with the options every command has."""
    command = getattr(import_module(f"edgeprec.cli.{name}"), f"{name}_command")
    if not isinstance(command, click.Command):
        raise TypeError(f"edgeprec.cli.{name}.{name}_command is no click command")
    return add_common_options(command)


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None when there is none of that name."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the summaries above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
@click.version_option(package_name="edgeprec", prog_name="edgeprec")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run language models at the lowest joules per token, without changing a single output token.

    \b
    Start here:
      edgeprec demo
      edgeprec export HuggingFaceTB/SmolLM2-135M-Instruct -o smollm2.edgeprec
      edgeprec run smollm2.edgeprec -p "The capital of France is"
    """
    ctx.color = wants_color(os.environ)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    mend_streams()
    sys.exit(run_and_report(cli, sys.argv[1:]))
