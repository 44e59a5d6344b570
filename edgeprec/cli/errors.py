"""How a command ends: one line on standard error for what went wrong, and the exit code that says which kind it was.

0 done   1 failed   2 usage or configuration   3 bundle invalid   4 does not fit   5 engine or device missing
130 interrupted with Ctrl-C
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import click

from edgeprec.errors import EdgePrecError

__all__ = ["INTERRUPTED", "run_and_report"]

INTERRUPTED = 130
_FAILED = 1
_log = logging.getLogger(__name__)


def run_and_report(command: click.Command, arguments: Sequence[str]) -> int:
    """Run ``command`` and return its exit code. No expected failure shows a traceback, unless ``-vv`` asks for it."""
    try:
        result = command.main(args=list(arguments), prog_name="edgeprec", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        return _report_usage(error)
    except click.ClickException as error:
        return _report(error.format_message(), error.exit_code)
    except EdgePrecError as error:
        _log.debug("traceback of the error below", exc_info=True)
        return _report(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _leave_closed_pipe()
    except OSError as error:
        _log.debug("traceback of the error below", exc_info=True)
        return _report(_describe(error), _FAILED)
    return result if isinstance(result, int) else 0


def _report(message: str, exit_code: int) -> int:
    click.echo(f"edgeprec: {message}", err=True)
    return exit_code


def _report_usage(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    path = error.ctx.command_path if error.ctx else "edgeprec"
    message = error.format_message().rstrip(".").replace("\n", " ")
    click.echo(f"{path}: {message} ({path} --help lists what it takes)", err=True)
    return error.exit_code


def _describe(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}"


def _leave_closed_pipe() -> int:
    """Point standard output at nothing, or the interpreter complains again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _FAILED
