"""How much work an evaluation is, told beforehand, so that whoever waits can be told how much is left.

The unit is one reply decoded by any means. A forced pass over a whole text costs a fraction of one: it reads many rows
at a time. Only shares matter, and they need not be exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from edgeprec.runtime.evaluation_settings import Table
from edgeprec.runtime.evaluation_texts import Progress

__all__ = ["DRAFT_STAGES", "overall", "stage_efforts"]

DRAFT_STAGES = ("drafts", "more drafts")
_FORCED_PASS = 0.4  # of a decoded reply: prompt and reply in blocks of rows, and every row compared with FP16's
_MODES = 3.2  # exact, gated, bounded, and FP16 judging what bounded emitted
_PLAIN = 2.0  # FP16 before and after the drafters


def stage_efforts(
    tables: Collection[Table], *, texts: int, layer_rows: int, drafting_texts: int, entrants: Sequence[int]
) -> dict[str, float]:
    """Return the effort of every stage of the asked ``tables``; ``entrants`` says how many draft in each stage."""
    found = {"fp16": float(texts)}
    if Table.LAYERS in tables:
        found["forced"] = texts * (layer_rows + 1) * _FORCED_PASS
        found["decode"] = texts * layer_rows * 2.0
    if Table.MODES in tables:
        found["modes"] = texts * _MODES
    if Table.DRAFTS in tables:
        found |= {stage: drafting_texts * (count + _PLAIN) for stage, count in zip(DRAFT_STAGES, entrants, strict=True)}
    return found


def overall(efforts: Mapping[str, float], tell: Progress) -> Progress:
    """Return a function that takes the progress of single stages and tells that of everything, in permille."""
    total = sum(efforts.values())
    spent: dict[str, float] = {}

    def progress(stage: str, done: int, of: int) -> None:
        spent[stage] = efforts[stage] * (done / of if of else 1.0)
        tell(stage, round(1000.0 * sum(spent.values()) / total), 1000)

    return progress
