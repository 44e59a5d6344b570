"""Measures one case of a batch sweep: slots that stay full, replies that end by themselves, one window around all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from batch_prompts import SweepPrompts

from edgeprec.config import GenerationConfig, Mode
from edgeprec.devices.meter import Meter
from edgeprec.errors import EngineError
from edgeprec.runtime.batch_benchmark import batch_generated
from edgeprec.runtime.batch_generation import BatchGenerator
from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import Case, Job
from edgeprec.runtime.benchmark_energy import repeat_energy
from edgeprec.runtime.benchmark_repeat import Repeat
from edgeprec.runtime.energy import NoWindow

__all__ = ["BatchBench"]

_MOST_TOKENS_PER_S = 40_000  # no batch is faster: so many prompts suffice
_WARM_UP_TOKENS = 24
_WARM_UP_JOINS = 8  # prompts of several lengths that take a slot each
_WARM_UP_RUNS = 6


@dataclass(slots=True)
class BatchBench:
    """What is measured with, and how long."""

    batches: BatchGenerator
    prompts: SweepPrompts
    meter: Meter | None
    seconds: float
    first_passes: Callable[[], int]  # that compiled or were captured, of all engines
    _is_timed: bool = False
    _ends_at: float | None = None

    def __post_init__(self) -> None:
        self.batches.open_window = lambda: NoWindow() if self.meter is None else self.meter.window("repeat")
        self.batches.is_over = lambda begun: self._is_timed and self._is_over()

    def warm_up(self, case: Case) -> int:
        """Run a case until nothing compiles or is captured any more; return how many runs that took.

        Adaptive drafting may choose anything at any time, so each kind of round is run beforehand; then whole replies,
        in which it also learns what rounds cost and tries drafts again where it had switched them off.
        """
        drafting = case.config.drafting
        if case.config.mode is not Mode.EXACT or drafting.draft_length is not None:
            few = min(_WARM_UP_TOKENS, case.new_tokens)
            return self._settle(case, joins=_WARM_UP_JOINS, new_tokens=few)
        self.batches.settle(case.config, slots=case.sequences, tokens=case.context_tokens)
        return self._settle(case, joins=_WARM_UP_JOINS, new_tokens=case.new_tokens)

    def _settle(self, case: Case, *, joins: int, new_tokens: int) -> int:
        count = case.sequences + joins
        jobs = self.prompts.jobs(count, repeat=0, new_tokens=new_tokens)
        for run in range(1, _WARM_UP_RUNS + 1):
            before = self.first_passes()
            self._run(case, jobs)
            if self.first_passes() == before:
                return run
        return _WARM_UP_RUNS

    def repeat(self, case: Case, number: int) -> Repeat:
        """Decode for so many seconds after the first prompts, inside one window of the meter.

        Raises:
            EngineError: the prompts ran out before, so that slots stood empty.
        """
        count = case.sequences + int(self.seconds * _MOST_TOKENS_PER_S / case.new_tokens) + 8
        jobs = self.prompts.jobs(count, repeat=number, new_tokens=case.new_tokens)
        self._is_timed, self._ends_at = True, None
        try:
            batch = self._run(case, jobs)
        finally:
            self._is_timed = False
        if len(batch) == len(jobs):
            raise EngineError(
                f"all {len(jobs)} prompts had begun before {self.seconds:g} s were over, so slots stood empty: replies "
                "are much shorter than --tokens, give fewer"
            )
        totals = BatchTotals(case.sequences)
        totals.add(batch)
        generated = batch_generated(batch, jobs[: len(batch)])
        tokens = sum(one.new_tokens for one in generated)
        energy, note = repeat_energy(self.batches.window, tokens=tokens, note="no meter: this is no GPU")
        return Repeat(generated=tuple(generated), energy=energy, energy_note=note, batch=totals)

    def _run(self, case: Case, jobs: list[Job]) -> BatchReply:
        """Run a batch that stays full; the first replies end at even distances, as if it had run for long."""
        size = case.sequences
        first = [-(-jobs[slot].max_new_tokens * (slot + 1) // size) for slot in range(min(size, len(jobs)))]
        limits = [*first, *(job.max_new_tokens for job in jobs[len(first) :])]
        alike: dict[int, GenerationConfig] = {
            limit: replace(case.config, max_new_tokens=limit) for limit in dict.fromkeys(limits)
        }
        return self.batches.run([job.tokens for job in jobs], [alike[limit] for limit in limits], at_once=size)

    def _is_over(self) -> bool:
        """Start the clock when it is first asked, which is after the prompts that begin together."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self.seconds
        return time.monotonic() >= self._ends_at
