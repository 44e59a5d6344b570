"""One batch as a benchmark counts it: a generation a sequence, whose times add up to the batch's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from edgeprec.devices.window import Window
from edgeprec.errors import ConfigError
from edgeprec.runtime.batch_engine import BatchEngine
from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import Case, CaseKind, Job
from edgeprec.runtime.benchmark_energy import BETWEEN, repeat_energy
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work, counted_tokens
from edgeprec.runtime.sampling import with_seed
from edgeprec.runtime.session import Session
from edgeprec.runtime.statistics import Tally

__all__ = ["batch_generated", "require_together", "run_together", "work_of"]


def require_together(session: Session, case: Case) -> None:
    """Check that this session runs the sequences of a case together.

    Raises:
        ConfigError: it cannot, or the case has tokens in the cache beforehand that would be counted.
    """
    count, batches = case.sequences, session.batches
    reason = batches.why_not_together([case.config] * count)
    if reason is None and isinstance(batches.engine, BatchEngine) and batches.engine.sequences < count:
        reason = f"this session was opened for {batches.engine.sequences}"
    if reason is not None:
        raise ConfigError(
            f"-npl asks for {count} sequences at once: {reason}; use -npl 1, or --engine torch with a mode and a "
            "drafter that run together"
        )
    if case.depth_tokens and case.kind is not CaseKind.DECODE:
        raise ConfigError(f"{case.name}: a batch fills its own caches, so -d goes with -n alone: use -p 0")


def run_together(session: Session, case: Case, jobs: Sequence[Job], window: AbstractContextManager[object]) -> Repeat:
    """Run one repeat, so many jobs at once, inside a window of the meter; the phases are the batch's.

    A job that waits takes the place of one that has ended.
    """
    is_synthetic = case.kind is not CaseKind.PROMPTS
    config = replace(case.config, ignore_eos=is_synthetic or case.config.ignore_eos)
    configs = [with_seed(replace(config, max_new_tokens=job.max_new_tokens)) for job in jobs]
    totals = BatchTotals(case.sequences)
    with window:
        batch = session.batches.run([job.tokens for job in jobs], configs, at_once=case.sequences)
        inner = session.batches.window
        if isinstance(window, Window) and isinstance(inner, Window):
            window.adopt(inner, after=BETWEEN)
    totals.add(batch)
    generated = batch_generated(batch, jobs)
    energy, note = repeat_energy(window, tokens=counted_tokens(case.kind, generated), note=batch.stats.energy_note)
    return Repeat(generated=tuple(generated), energy=energy, energy_note=note, batch=totals)


def batch_generated(batch: BatchReply, jobs: Sequence[Job]) -> list[Generated]:
    """Return one entry a job. Each has its share of the batch's time, by sequences, so that rates come out in all."""
    stats, count = batch.stats, len(batch)
    return [
        Generated(
            id=job.id,
            kind=job.kind,
            prompt_tokens=reply.stats.prompt_tokens,
            cached_tokens=0,
            new_tokens=reply.stats.new_tokens,
            prefill_s=stats.prefill_s / count,
            decode_s=stats.decode_s / count,
            finish_reason=str(reply.finish_reason),
            text=reply.text,
            tokens=reply.tokens,
            work=replace(
                work_of(sequence.tally, reply.stats.drafter),
                rounds=sequence.rounds,
                drafted=sequence.drafted,
                accepted=sequence.accepted,
            ),
            fallbacks=reply.stats.fallbacks,
        )
        for job, reply, sequence in zip(jobs, batch, batch.sequences, strict=True)
    ]


def work_of(tally: Tally, drafter: str) -> Work:
    """Return what the layers did for one sequence."""
    counters = (tally.target, *tally.drafts)
    return Work(
        drafter=drafter,
        rounds=len(tally.rounds),
        drafted=sum(len(record.drafted) for record in tally.rounds),
        accepted=sum(record.accepted for record in tally.rounds),
        int4_passes=sum(passes.int4_passes for passes in counters),
        all_passes=sum(passes.all_passes for passes in counters),
        bits_read=sum(passes.bits_read for passes in counters),
        weights_read=sum(passes.weights_read for passes in counters),
    )
