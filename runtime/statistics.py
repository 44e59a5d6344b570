"""Counts and times of a generation, gathered round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeprec.runtime.passes import PassCounter
from edgeprec.runtime.reply import EnergyStats, RoundRecord, Stats

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """What a generation adds up. Times are monotonic ns; the counters count passes after prefill.

    ``level`` is the INT4 target's in three-level drafting; it counts as draft, like the INT4 target's self drafts.
    """

    prompt_tokens: int
    target: PassCounter
    draft: PassCounter
    level: PassCounter | None = None
    start_ns: int = 0
    first_token_ns: int | None = None
    end_ns: int = 0
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def drafts(self) -> tuple[PassCounter, ...]:
        """Return the counters of all that drafts for FP16."""
        return (self.draft,) if self.level is None else (self.draft, self.level)

    def stats(
        self,
        *,
        new_tokens: int,
        fallbacks: Sequence[str],
        energy: EnergyStats | None,
        energy_note: str | None,
        **facts: Any,
    ) -> Stats:
        """Return the statistics of the ended generation; ``facts`` are further fields of ``Stats``."""
        first_ns = self.end_ns if self.first_token_ns is None else self.first_token_ns
        decode_s = (self.end_ns - first_ns) * 1e-9
        drafted = sum(len(record.drafted) for record in self.rounds)
        accepted = sum(record.accepted for record in self.rounds)
        every, drafts = (self.target, *self.drafts), self.drafts
        return Stats(
            prompt_tokens=self.prompt_tokens,
            new_tokens=new_tokens,
            prefill_s=(first_ns - self.start_ns) * 1e-9,
            decode_s=decode_s,
            tokens_per_s=(new_tokens - 1) / decode_s if new_tokens > 1 and decode_s > 0 else None,
            rounds=len(self.rounds),
            drafted=drafted,
            accepted=accepted,
            acceptance_rate=accepted / drafted if drafted else None,
            mean_draft_length=drafted / len(self.rounds) if self.rounds else None,
            int4_layer_share=_ratio(sum(p.int4_passes for p in every), sum(p.all_passes for p in every)),
            draft_int4_layer_share=_ratio(sum(p.int4_passes for p in drafts), sum(p.all_passes for p in drafts)),
            target_int4_layer_share=_ratio(self.target.int4_passes, self.target.all_passes),
            bits_read_per_weight=_ratio(sum(p.bits_read for p in every), sum(p.weights_read for p in every)),
            verify_rounds=sum(record.verified_rows > 0 for record in self.rounds),
            fallbacks=tuple(fallbacks),
            energy=energy,
            energy_note=energy_note,
            **facts,
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
