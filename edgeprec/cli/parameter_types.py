"""Flag values that are more than a number or a word."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["DRAFT_LENGTH", "FINITE", "STOP_TEXT", "FiniteNumber", "FiniteRange"]


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


class FiniteNumber(click.types.FloatParamType):
    """A number, which NaN and infinity are not: every comparison with NaN is false, so a check of a range takes it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        return _finite(self, value, super().convert(value, param, ctx), param, ctx)


class FiniteRange(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        return _finite(self, value, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: click.types.FloatParamType, value: Any, number: Any, param: click.Parameter | None, ctx: click.Context | None
) -> float:
    if not math.isfinite(number):
        kind.fail(f"{value!r} is not a finite number", param, ctx)
    return float(number)


DRAFT_LENGTH = DraftLength()
FINITE = FiniteNumber()
STOP_TEXT = StopText()
