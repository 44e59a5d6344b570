"""Runs a small tool of the system with a time limit that holds even when the tool's own children hang."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["RunTool", "ToolOutput", "run_tool"]


class ToolOutput(NamedTuple):
    """What a tool printed, standard error included, or None and why there is nothing."""

    text: str | None
    reason: str | None = None


RunTool = Callable[[Sequence[str], float], ToolOutput]


def run_tool(arguments: Sequence[str], timeout_s: float) -> ToolOutput:
    """Run a tool, without a shell, and return what it printed whatever its exit status. Never raises."""
    name = arguments[0].rpartition("/")[2]
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return ToolOutput(None, f"{name} cannot be started ({error.strerror})")
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return ToolOutput(None, f"{name} did not answer within {timeout_s:g} s")
    return ToolOutput(output.decode("utf-8", errors="replace"))
