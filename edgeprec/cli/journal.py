"""Tell systemd's journal how serious a line is: a number in angle brackets before it, as sd-daemon(3) has it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

__all__ = ["is_journal", "with_priority"]

_ERROR, _WARNING, _INFO, _DEBUG = 3, 4, 6, 7


def is_journal(environ: Mapping[str, str], descriptor: int = 2) -> bool:
    """Whether the journal reads ``descriptor``: its device and inode are what ``JOURNAL_STREAM`` names."""
    named = environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def with_priority(text: str, level: int) -> str:
    """Put the priority of a logging level before every line, or only the first one would have it."""
    steps = ((logging.ERROR, _ERROR), (logging.WARNING, _WARNING), (logging.INFO, _INFO), (-sys.maxsize, _DEBUG))
    priority = next(priority for least, priority in steps if level >= least)
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))
