"""What one reply of the decoding benchmark gave, and what many of them give together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from edgeprec.config import GenerationConfig
from edgeprec.prompts import Prompt, PromptKind
from edgeprec.runtime.reply import token_sha256
from edgeprec.runtime.session import Session

__all__ = ["Record", "Spread", "Summary", "decode_one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One reply. ``read_bytes`` are the linears' weights that its passes after prefill read, draft and target."""

    way: str
    prompt: str
    kind: PromptKind
    tokens: tuple[int, ...]
    decode_s: float
    prefill_s: float
    draft_s: float
    verify_s: float
    rounds: int
    drafted: int
    accepted: int
    read_bytes: float
    joules: float | None
    joules_above_idle: float | None
    joules_by_phase: dict[str, float | None]
    energy_note: str | None
    fallbacks: tuple[str, ...]
    model_drafted: int = 0  # of three levels: by the draft model for the INT4 target, and what that accepted
    model_accepted: int = 0
    direct_rounds: int = 0  # of three levels: rounds in which FP16 checked the draft model's tokens itself

    @property
    def tokens_per_s(self) -> float | None:
        """Return tokens after the first by the seconds they took."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 and self.decode_s > 0 else None

    def to_json(self, *, plain: Record | None) -> dict[str, Any]:
        """Return plain values; ``plain`` is FP16's reply to the same prompt."""
        values = asdict(self) | {"type": "reply", "token_sha256": token_sha256(self.tokens)}
        values["tokens"] = len(self.tokens)
        values["tokens_per_s"] = self.tokens_per_s
        values["is_identical"] = None if plain is None else self.tokens == plain.tokens
        return values


def decode_one(session: Session, way: str, config: GenerationConfig, prompt: Prompt) -> Record:
    """Decode one prompt to its end."""
    generation = session.stream(prompt.text, config)
    for _ in generation:
        pass
    reply, tally = generation.reply, generation.tally
    stats, energy = reply.stats, reply.stats.energy
    return Record(
        way=way,
        prompt=prompt.id,
        kind=prompt.kind,
        tokens=reply.tokens,
        decode_s=stats.decode_s,
        prefill_s=stats.prefill_s,
        draft_s=sum(record.draft_ns for record in tally.rounds) * 1e-9,
        verify_s=sum(record.verify_ns for record in tally.rounds) * 1e-9,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        model_drafted=0 if stats.three_level is None else stats.three_level.model_drafted,
        model_accepted=0 if stats.three_level is None else stats.three_level.model_accepted,
        direct_rounds=0 if stats.three_level is None else stats.three_level.direct_rounds,
        read_bytes=sum(passes.bits_read for passes in (tally.target, *tally.drafts)) / 8,
        joules=None if energy is None else energy.joules,
        joules_above_idle=None if energy is None else energy.joules_above_idle,
        joules_by_phase={} if energy is None else energy.by_phase,
        energy_note=stats.energy_note,
        fallbacks=stats.fallbacks,
    )


class Spread(NamedTuple):
    """The middle half over prompts."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Replies of one way of decoding; rates and energies are totals over totals, prompts of any kind alike."""

    records: Sequence[Record]

    @property
    def tokens_per_s(self) -> float:
        """Return all tokens after the first of their reply by all seconds of decoding."""
        return sum(len(record.tokens) - 1 for record in self.records) / sum(record.decode_s for record in self.records)

    @property
    def rate_spread(self) -> Spread:
        """Return the middle half of tokens/s."""
        return _spread([rate for record in self.records if (rate := record.tokens_per_s) is not None])

    @property
    def joules_per_token(self) -> float | None:
        """Return all joules, prefill and idle power included, by all tokens; None where nothing was measured."""
        return self._per_token([record.joules for record in self.records])

    @property
    def joules_spread(self) -> Spread | None:
        """Return the middle half of joules per token."""
        found = [record.joules / len(record.tokens) for record in self.records if record.joules is not None]
        return _spread(found) if found else None

    @property
    def joules_above_idle_per_token(self) -> float | None:
        """Return the same without what the machine takes at rest."""
        return self._per_token([record.joules_above_idle for record in self.records])

    def phase_joules_per_token(self, phase: str) -> float | None:
        """Return the joules of a phase by all tokens."""
        return self._per_token([record.joules_by_phase.get(phase) for record in self.records])

    @property
    def gb_per_s(self) -> float:
        """Return weights read by seconds of decoding; the cache is not counted."""
        return 1e-9 * sum(record.read_bytes for record in self.records) / sum(r.decode_s for r in self.records)

    def acceptance(self, kind: PromptKind | None = None) -> float | None:
        """Return accepted by drafted tokens, of one kind of text or of all."""
        chosen = [record for record in self.records if kind is None or record.kind == kind]
        drafted = sum(record.drafted for record in chosen)
        return sum(record.accepted for record in chosen) / drafted if drafted else None

    @property
    def level_acceptance(self) -> float | None:
        """Return what share of the draft model's tokens the INT4 target accepted, None without three levels."""
        drafted = sum(record.model_drafted for record in self.records)
        return sum(record.model_accepted for record in self.records) / drafted if drafted else None

    def per_round(self, name: str) -> float:
        """Return the mean of a field of ``Record`` by round, 0 where there were no rounds."""
        rounds = sum(record.rounds for record in self.records)
        return float(sum(getattr(record, name) for record in self.records)) / rounds if rounds else 0.0

    @property
    def tokens_a_round(self) -> float:
        """Return accepted tokens and the target's own by round."""
        return 1.0 + self.per_round("accepted")

    def identical_to(self, plain: Iterable[Record]) -> int:
        """Return how many replies have the tokens of ``plain``'s to the same prompt."""
        by_prompt = {record.prompt: record.tokens for record in plain}
        return sum(by_prompt.get(record.prompt) == record.tokens for record in self.records)

    def _per_token(self, joules: Sequence[float | None]) -> float | None:
        seen = [(value, record) for value, record in zip(joules, self.records, strict=True) if value is not None]
        tokens = sum(len(record.tokens) for _, record in seen)
        return sum(value for value, _ in seen) / tokens if tokens else None


def _spread(values: Sequence[float]) -> Spread:
    if len(values) < 2:
        return Spread(values[0], values[0]) if values else Spread(0.0, 0.0)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, high)
