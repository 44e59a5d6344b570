"""The standard streams as the commands need them: all three open, and able to take any text."""

from __future__ import annotations

import io
import os
import sys
from typing import IO

__all__ = ["mend_streams"]


def mend_streams() -> None:
    """Open what the caller closed (``>&-``) on the null device, and write ? for what the encoding does not have.

    A closed stream is None in Python, and its number would go to the next file that is opened: what a library writes
    to standard output would end up in there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _null_stream(number))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _null_stream(number: int) -> IO[str]:
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY
    opened = os.open(os.devnull, flags)
    if opened != number and not _is_open(number):
        os.dup2(opened, number)
        os.close(opened)
        opened = number
    mode = "r" if number == 0 else "w"
    return open(opened, mode, encoding="utf-8", errors="backslashreplace", closefd=False)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
