"""Flag values that are more than a number or a word."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["DRAFT_LENGTH", "STOP_TEXT"]


class DraftLength(click.ParamType):  # type: ignore[type-arg]  # generic only in click's newest versions
    """``adaptive`` -> None, or a number of tokens."""

    name = "adaptive|K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, None for ``adaptive``."""
        if value == "adaptive":
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is neither 'adaptive' nor a number of tokens", param, ctx)


class StopText(click.types.StringParamType):
    """A text; its environment variable holds one per line, since a stop text may hold spaces."""

    envvar_list_splitter = "\n"


DRAFT_LENGTH = DraftLength()
STOP_TEXT = StopText()
