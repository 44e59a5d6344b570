"""Brings the prompts of a batch into a cache, all of them at once and some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeprec.precision import Plan
from edgeprec.runtime.batch_engine import BatchEngine

__all__ = ["LEAST_ROWS", "catch_up", "has_fewer_rows_together", "prefill_rows", "widths"]

LEAST_ROWS = 16  # a pass of fewer costs as much


def prefill_rows(
    engine: BatchEngine, texts: Sequence[Sequence[int]], plan: Plan
) -> Iterator[tuple[object, dict[int, int]]]:
    """Run texts [B] from their beginnings in slots 0 .. B - 1.

    Yield each pass with the slots whose text ended in it and the row, within the slot, of its last token. Rows never
    depend on their company, so the pieces' size changes no bit.
    """
    yield from _run(engine, texts, [0] * len(texts), plan)


def catch_up(engine: BatchEngine, texts: Sequence[Sequence[int]], cached: Sequence[int], plan: Plan) -> None:
    """Run what a drafter's cache lacks of texts [B] that hold no foreign ids; an empty text leaves a slot out."""
    for _ in _run(engine, texts, cached, plan):
        pass


def _run(
    engine: BatchEngine, texts: Sequence[Sequence[int]], cached: Sequence[int], plan: Plan
) -> Iterator[tuple[object, dict[int, int]]]:
    width = _most_rows(engine, len(texts))
    positions = list(cached)
    while any(position < len(text) for position, text in zip(positions, texts, strict=True)):
        rows = [list(text[position : position + width]) for position, text in zip(positions, texts, strict=True)]
        step = engine.forward_batch(
            rows,
            positions=[p if row else 0 for p, row in zip(positions, rows, strict=True)],
            plan=plan,
            width=min(_padded(max(map(len, rows))), width),
        )
        positions = [position + len(row) for position, row in zip(positions, rows, strict=True)]
        ended = {slot: len(row) - 1 for slot, row in enumerate(rows) if row and positions[slot] == len(texts[slot])}
        yield step, ended


def has_fewer_rows_together(engine: BatchEngine, lengths: Sequence[int], *, slots: int) -> bool:
    """Whether prompts of these lengths take no more rows in passes over so many slots than one by one.

    Rows that only fill a pass up count too: those of the other slots, and of texts that have ended before the longest.
    """
    together = slots * _filled_rows(engine, max(lengths), slots=slots)
    return len(lengths) > 1 and together <= sum(_filled_rows(engine, length, slots=1) for length in lengths)


def widths(engine: BatchEngine, *, slots: int, tokens: int) -> list[int]:
    """Return the rows a slot of every kind of pass that texts of up to so many tokens may take, smallest first."""
    most = min(_most_rows(engine, slots), _padded(tokens))
    found = [most]
    while found[0] > LEAST_ROWS:
        found.insert(0, _padded(-(-found[0] // 2)))
    return found


def _most_rows(engine: BatchEngine, slots: int) -> int:
    return max(engine.info.max_rows // slots, 1)


def _filled_rows(engine: BatchEngine, tokens: int, *, slots: int) -> int:
    """Return the rows of a slot that a text takes in all of its passes."""
    width = _most_rows(engine, slots)
    whole, rest = divmod(tokens, width)
    return whole * width + (min(_padded(rest), width) if rest else 0)


def _padded(rows: int) -> int:
    """Return a power of two: prompts of any length take a few kinds of passes, each compiled and captured once."""
    return max(1 << (rows - 1).bit_length(), LEAST_ROWS)
