"""Runs every kind of pass and round that a batch may meet, before any of them is on the clock.

Which kinds it meets hangs on its texts: a drafter lacks one token more after a draft that was accepted whole, and any
number while it was not asked. So running texts finds the kinds by chance alone. Here each is run until it is an
ordinary one, compiled and captured. What it writes into the caches means nothing: no text may be in a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_engine import BatchEngine, BatchRounds, RoundWork
from edgeprec.runtime.batch_prefill import catch_up, widths

__all__ = ["settle_rounds"]

_MOST_RUNS = 4  # an ordinary run, the capture, a replay; anything more would never end


def settle_rounds(
    engine: BatchEngine,
    drafter: BatchEngine,
    rounds: BatchRounds,
    *,
    slots: int,
    tokens: int,
    draft_plan: Plan,
    largest_cap: int,
    first_passes: Callable[[], int],
) -> None:
    """Run all kinds of passes and rounds of so many slots for texts of up to ``tokens``, prompts that join included.

    Raises:
        EngineError: a pass failed, or the texts do not fit into the cache.
    """
    fp16 = _fp16(engine)
    for count in {slots, 1}:
        _settle_passes(engine, fp16, count, tokens, first_passes)
        if drafter is not engine:
            _settle_passes(drafter, _fp16(drafter), count, tokens, first_passes)
    if drafter is not engine:
        _settle_passes(drafter, draft_plan, slots, tokens, first_passes)
    reaches = (1, 2) if drafter is not engine else (1,)
    for cap in range(largest_cap + 1):  # any of them, where texts are about to end
        for reach in reaches if cap else (1,):
            work = _work(slots, tokens - cap, cap, reach, draft_plan, fp16)
            for _ in _unsettled(first_passes):
                rounds.launch(work)
                rounds.read()


def _settle_passes(engine: BatchEngine, plan: Plan, slots: int, tokens: int, first_passes: Callable[[], int]) -> None:
    """Run prompts of each width, and first the longest, so that no round reads what was never written."""
    catch_up(engine, [[0] * tokens] * slots, [0] * slots, plan)
    for width in widths(engine, slots=slots, tokens=tokens):
        for _ in _unsettled(first_passes):
            catch_up(engine, [[0] * min(width, tokens)] * slots, [0] * slots, plan)


def _unsettled(first_passes: Callable[[], int]) -> Iterator[None]:
    """Ask for another run as long as the last one was the first of its kind."""
    for _ in range(_MOST_RUNS):
        before = first_passes()
        yield
        if first_passes() == before:
            return


def _fp16(engine: BatchEngine) -> Plan:
    return Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)


def _work(slots: int, length: int, cap: int, reach: int, draft_plan: Plan, plan: Plan) -> RoundWork:
    return RoundWork(
        first=np.zeros((slots, reach), np.int32),
        lengths=np.full(slots, length, np.int32),
        drafts=np.full(slots, cap, np.int32),
        cap=cap,
        draft_plan=draft_plan if cap else None,
        plan=plan,
    )
