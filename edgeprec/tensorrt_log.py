"""What TensorRT says while it builds or loads, kept instead of printed: an error's reason lies in it."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["last_error", "logger_into"]

_ERRORS = ("ERROR ", "INTERNAL_ERROR ")


def logger_into(module: Any, lines: list[str] | deque[str]) -> Any:
    """Return a logger of the library ``module`` that appends ``SEVERITY first line``, verbose ones left out."""

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity < module.ILogger.VERBOSE:
                lines.append(f"{severity.name} {message.strip().partition(chr(10))[0]}")

    return Logger()


def last_error(lines: list[str] | deque[str]) -> str:
    """Return the last error among ``lines``, shortened, or that there is none."""
    errors = [line for line in lines if line.startswith(_ERRORS)]
    return errors[-1].partition(" ")[2][:300] if errors else "it gave no reason"
