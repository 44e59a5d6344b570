"""Every expected failure is one line on standard error and the exit code of its kind."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from edgeprec.cli.errors import run_and_report
from edgeprec.errors import (
    BundleError,
    ConfigError,
    DeviceError,
    EdgePrecError,
    EngineError,
    KernelError,
    MemoryBudgetError,
    MissingDependency,
)


def failing_with(error: BaseException) -> click.Command:
    """Return a command that raises ``error``."""

    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EdgePrecError("it failed"), 1),
        (KernelError("it failed"), 1),
        (ConfigError("it failed"), 2),
        (BundleError("it failed"), 3),
        (MemoryBudgetError("it failed"), 4),
        (DeviceError("it failed"), 5),
        (EngineError("it failed"), 5),
        (click.ClickException("it failed"), 1),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts tell the kinds of failure apart by the exit code; people read one sentence."""
    assert run_and_report(failing_with(error), []) == code
    captured = capsys.readouterr()
    assert captured.err == "edgeprec: it failed\n"
    assert captured.out == ""


def test_a_missing_package_names_the_install_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The one thing to do about a missing extra is in the message."""
    error = MissingDependency(package="onnx", purpose="export", extra="export")
    assert run_and_report(failing_with(error), []) == 5
    assert "pip install 'edgeprec[export]'" in capsys.readouterr().err


def test_an_operating_system_error_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk is a sentence, not a traceback."""
    error = OSError(28, "No space left on device", "out/weights")
    assert run_and_report(failing_with(error), []) == 1
    assert capsys.readouterr().err == "edgeprec: out/weights: No space left on device\n"


def test_ctrl_c_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """130 is what shells expect of a command that SIGINT ended."""
    assert run_and_report(failing_with(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr().err.strip() == "edgeprec: interrupted"


def test_our_own_bugs_keep_their_traceback() -> None:
    """A defect must not be dressed up as a user's error."""
    with pytest.raises(ZeroDivisionError):
        run_and_report(failing_with(ZeroDivisionError()), [])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nope"], "edgeprec: No such option '--nope'"),
        (["frobnicate"], "edgeprec: No such command 'frobnicate'"),
        (["run", "b", "--mode", "fast"], "edgeprec run: Invalid value for '--mode': 'fast' is not one of 'exact'"),
        (["run", "b", "--top-k", "x"], "edgeprec run: Invalid value for '--top-k'"),
        (["run", "b", "--draft-length", "x"], "'x' is neither 'adaptive' nor a number"),
        (["run"], "edgeprec run: Missing argument 'BUNDLE'"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(invoke: Callable[..., Any], arguments: list[str], expected: str) -> None:
    """A wrong flag names itself, what was expected, and where to read more."""
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert "--help" in outcome.err
    assert outcome.err.count("\n") == 1


def test_double_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a sentence is not enough, -vv gives the whole story."""
    logging.getLogger("edgeprec").setLevel(logging.DEBUG)
    try:
        run_and_report(failing_with(ConfigError("it failed")), [])
        assert "it failed" in capsys.readouterr().err
    finally:
        logging.getLogger("edgeprec").setLevel(logging.WARNING)


def test_a_closed_pipe_is_silent() -> None:
    """``edgeprec ... | head -1`` must not end in a traceback."""
    command = f"{sys.executable} -m edgeprec --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("Usage: edgeprec")
