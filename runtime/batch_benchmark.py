"""One batch as a benchmark counts it: a generation a sequence, whose times add up to the batch's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeprec.runtime.batch_reply import BatchReply
from edgeprec.runtime.benchmark_case import Job
from edgeprec.runtime.benchmark_repeat import Generated, Work
from edgeprec.runtime.statistics import Tally

__all__ = ["BatchTotals", "batch_generated", "work_of"]


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
            work=work_of(tally, reply.stats.drafter),
            fallbacks=reply.stats.fallbacks,
        )
        for job, reply, tally in zip(jobs, batch, batch.tallies, strict=True)
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


@dataclass(slots=True)
class BatchTotals:
    """What the batches of one row did together: the field ``batch`` of its record."""

    sequences: int
    decode_s: float = 0.0
    emitted: int = 0
    turns: int = 0  # rounds times the sequences in them
    caps: Counter[int] = field(default_factory=Counter)

    def add(self, batch: BatchReply) -> None:
        """Take in one batch."""
        self.decode_s += batch.stats.decode_s
        self.emitted += sum(found.emitted for found in batch.rounds)
        self.turns += sum(found.sequences for found in batch.rounds)
        self.caps.update(found.cap for found in batch.rounds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; null where nothing was decoded."""
        rounds = sum(self.caps.values())
        return {
            "sequences": self.sequences,
            "mean_sequences": self.turns / rounds if rounds else None,
            "tokens_per_s_per_sequence": self.emitted / self.decode_s / self.sequences if self.decode_s else None,
            "tokens_per_round": self.emitted / self.turns if self.turns else None,
            "rounds": rounds,
            "rounds_by_cap": {str(cap): count for cap, count in sorted(self.caps.items())},
        }
