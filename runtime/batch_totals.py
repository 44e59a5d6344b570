"""What the batches of a benchmark's row did together: the field ``batch`` of its record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from edgeprec.runtime.batch_reply import BatchReply

__all__ = ["BatchTotals"]


@dataclass(slots=True)
class BatchTotals:
    """Sums over batches of so many sequences."""

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

    def merge(self, other: BatchTotals) -> None:
        """Take in another repeat's batches."""
        self.decode_s += other.decode_s
        self.emitted += other.emitted
        self.turns += other.turns
        self.caps.update(other.caps)

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
