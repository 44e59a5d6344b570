"""Lists on the command line of ``bench``: ``1,2,8-10``, ``512,128`` as a pair, modes, draft lengths.

A range is ``first-last``, ``first-last+step`` or ``first-last*factor``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from edgeprec.config import Mode

__all__ = ["COUNTS", "COUNTS_FROM_1", "DRAFT_LENGTHS", "MODES", "PAIRS", "parse_counts"]

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:([+*])(\d{1,9}))?)?", re.ASCII)
_PAIR = re.compile(r"([1-9]\d{0,8}),([1-9]\d{0,8})", re.ASCII)
_MOST = 1000


def parse_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list, in order, each once.

    Raises:
        ValueError: it is no such list; the text says why.
    """
    return tuple(dict.fromkeys(number for part in text.split(",") for number in _numbers(part.strip())))


def _numbers(part: str) -> Iterator[int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(f"{part!r} is neither a number nor a range such as 1-8, 1-8+2 or 1-64*2")
    first, last = int(found[1]), int(found[2] or found[1])
    step = int(found[4] or 1)
    if last < first:
        raise ValueError(f"the range {part!r} ends below its start")
    for _ in range(_MOST):
        yield first
        if first == last:
            return
        following = first * step if found[3] == "*" else first + step
        if following > last:
            return
        if following <= first:
            raise ValueError(f"the range {part!r} never ends: its step must make it grow")
        first = following
    raise ValueError(f"the range {part!r} has more than {_MOST} numbers")


class CountList(click.ParamType):  # type: ignore[type-arg]  # generic only in click's newest versions
    """Numbers and ranges, separated by commas, none below ``least``."""

    name = "list"

    def __init__(self, *, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            counts = parse_counts(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if min(counts) < self._least:
            self.fail(f"{value!r} holds {min(counts)}, expected {self._least} or more", param, ctx)
        return counts


class PairList(click.ParamType):  # type: ignore[type-arg]
    """``P,N`` or several of them, separated by semicolons."""

    name = "P,N;.."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        """Return the pairs."""
        if isinstance(value, tuple):
            return value
        pairs = [_PAIR.fullmatch(part.strip()) for part in str(value).split(";")]
        found = [(int(pair[1]), int(pair[2])) for pair in pairs if pair is not None]
        if len(found) < len(pairs):
            self.fail(f"{value!r} is no pair of prompt and new tokens such as 512,128", param, ctx)
        return tuple(dict.fromkeys(found))


class ModeList(click.ParamType):  # type: ignore[type-arg]
    """Modes, separated by commas."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Mode, ...]:
        """Return the modes."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        for word in words:
            if word not in tuple(Mode):
                self.fail(f"{word!r} is no mode, expected one of {', '.join(Mode)}", param, ctx)
        return tuple(dict.fromkeys(Mode(word) for word in words))


class DraftLengthList(click.ParamType):  # type: ignore[type-arg]
    """``adaptive``, numbers of tokens and ranges of them, separated by commas."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, ...]:
        """Return the lengths, None for ``adaptive``."""
        if isinstance(value, tuple):
            return value
        lengths: dict[int | None, None] = {}
        for part in str(value).split(","):
            try:
                lengths |= dict.fromkeys([None] if part.strip() == "adaptive" else parse_counts(part))
            except ValueError as error:
                self.fail(f"{error}, nor is it 'adaptive'", param, ctx)
        return tuple(lengths)


COUNTS = CountList()
COUNTS_FROM_1 = CountList(least=1)
PAIRS = PairList()
MODES = ModeList()
DRAFT_LENGTHS = DraftLengthList()
