"""Whether output is coloured: FORCE_COLOR wants it anywhere, NO_COLOR nowhere, else a terminal gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

__all__ = ["shows_color", "wants_color"]


def wants_color(environ: Mapping[str, str]) -> bool | None:
    """Return what the environment says about colours, None when that is nothing."""
    if environ.get("FORCE_COLOR"):
        return True
    return False if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" else None


def shows_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether colours belong on ``stream``."""
    wanted = wants_color(environ)
    return stream.isatty() if wanted is None else wanted
