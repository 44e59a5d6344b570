"""What a batch returns: the replies in order, and what all of them took together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload

from edgeprec.runtime.batch_decoder import BatchRound
from edgeprec.runtime.batch_sequence import BatchSequence
from edgeprec.runtime.reply import EnergyStats, Reply

__all__ = ["BatchReply", "BatchStats", "batch_stats", "shared_energy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Counts and times of a whole batch. ``tokens_per_s`` = all tokens after each first one / decode seconds.

    ``at_once`` is how many sequences ran together; 1 = one after another. ``caps`` counts rounds by how far they
    drafted, ``tokens_per_round`` is of one sequence.
    """

    sequences: int
    at_once: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float | None
    rounds: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_round: float | None
    caps: dict[int, int]
    fallbacks: tuple[str, ...]
    energy: EnergyStats | None
    energy_note: str | None


@dataclass(frozen=True, slots=True)
class BatchReply(Sequence[Reply]):
    """The replies of a list of prompts, in its order; ``stats`` is of all together."""

    replies: tuple[Reply, ...]
    stats: BatchStats
    rounds: tuple[BatchRound, ...] = field(default=(), repr=False)
    sequences: tuple[BatchSequence, ...] = field(default=(), repr=False)  # none where replies came one after another

    @overload
    def __getitem__(self, index: int) -> Reply: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Reply, ...]: ...

    def __getitem__(self, index: int | slice) -> Reply | tuple[Reply, ...]:
        return self.replies[index]

    def __len__(self) -> int:
        return len(self.replies)

    def __iter__(self) -> Iterator[Reply]:
        return iter(self.replies)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        stats = asdict(self.stats)
        stats["caps"] = {str(cap): count for cap, count in self.stats.caps.items()}
        stats["fallbacks"] = list(self.stats.fallbacks)
        return {"replies": [reply.to_json() for reply in self.replies], "stats": stats}


def batch_stats(
    replies: Sequence[Reply],
    *,
    at_once: int,
    rounds: Sequence[BatchRound] = (),
    prefill_s: float | None = None,
    decode_s: float | None = None,
    fallbacks: Sequence[str] = (),
    energy: EnergyStats | None = None,
    energy_note: str | None = None,
) -> BatchStats:
    """Add replies up. Without times of their own, the replies came one after another."""
    stats = [reply.stats for reply in replies]
    prefill_s = sum(one.prefill_s for one in stats) if prefill_s is None else prefill_s
    decode_s = sum(one.decode_s for one in stats) if decode_s is None else decode_s
    drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
    new_tokens, decoded = sum(one.new_tokens for one in stats), sum(max(one.new_tokens - 1, 0) for one in stats)
    each_rounds = sum(one.rounds for one in stats)
    return BatchStats(
        sequences=len(replies),
        at_once=at_once,
        new_tokens=new_tokens,
        prefill_s=prefill_s,
        decode_s=decode_s,
        tokens_per_s=decoded / decode_s if decoded and decode_s > 0 else None,
        rounds=len(rounds) if rounds else each_rounds,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        tokens_per_round=decoded / each_rounds if each_rounds else None,
        caps=dict(sorted(Counter(one.cap for one in rounds).items())),
        fallbacks=tuple(dict.fromkeys(fallbacks)),
        energy=energy,
        energy_note=energy_note,
    )


def shared_energy(energy: EnergyStats | None, *, tokens: int, of_tokens: int) -> EnergyStats | None:
    """Return a reply's part of a batch's joules, by its tokens; nothing can measure it apart from the others."""
    if energy is None or not of_tokens:
        return None
    share = tokens / of_tokens
    above = energy.joules_above_idle
    return replace(
        energy,
        joules=energy.joules * share,
        joules_per_token=energy.joules_per_token if tokens else None,
        by_phase={phase: None if joules is None else joules * share for phase, joules in energy.by_phase.items()},
        plus_minus_joules=energy.plus_minus_joules * share,
        joules_above_idle=None if above is None else above * share,
        note=f"{tokens} of the {of_tokens} tokens of a batch that took {energy.joules:.4g} J",
    )
