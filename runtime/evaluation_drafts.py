"""Who drafts, how far and by which rule: acceptance and speed over plain FP16 on the same texts in the same run.

Every text goes through all contestants in turn, plain FP16 before and after them, so that a slow moment of the machine
hits all alike. Acceptance by entropy counts what FP16 judged: in each round the drafted tokens up to and including the
first one it rejected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeprec.calibration import ENTROPY_EDGES_BITS
from edgeprec.config import DrafterKind, DraftingConfig, DraftRule, Mode
from edgeprec.prompts import PromptKind
from edgeprec.runtime.evaluation_texts import EvaluationText, Progress
from edgeprec.runtime.reply import Reply, RoundRecord
from edgeprec.runtime.session import Session

__all__ = [
    "Contestant",
    "DraftComparison",
    "DraftScore",
    "contestant_groups",
    "contestants",
    "in_turn",
    "judged_drafts",
    "measure_drafts",
]

_BINS = len(ENTROPY_EDGES_BITS) + 1
_WARM_UP_TOKENS = 12
_PUBLISHED_RULES = (DraftRule.SVIP, DraftRule.ADAEDL)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A drafter with a fixed length, or with an adaptive one (``length`` None) and a rule."""

    drafter: DrafterKind
    length: int | None
    rule: DraftRule

    @property
    def config(self) -> DraftingConfig:
        """Return its settings."""
        return DraftingConfig(drafter=self.drafter, draft_length=self.length, rule=self.rule)

    def to_json(self) -> dict[str, Any]:
        """Return its name, length and rule."""
        k = "adaptive" if self.length is None else self.length
        return {"name": str(self.drafter), "k": k, "rule": str(self.rule)}


@dataclass(slots=True)
class DraftScore:
    """Sums over texts. ``fp16_s`` is what plain decoding took for the same texts."""

    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    decode_s: float = 0.0
    fp16_s: float = 0.0
    differing_tokens: int = 0
    judged: list[int] = field(default_factory=lambda: [0] * _BINS)
    agreed: list[int] = field(default_factory=lambda: [0] * _BINS)

    def add(self, reply: Reply, rounds: Sequence[RoundRecord], *, fp16: Reply, fp16_s: float) -> None:
        """Count one text."""
        self.drafted += reply.stats.drafted
        self.accepted += reply.stats.accepted
        self.tokens += max(len(reply.tokens) - 1, 0)
        self.decode_s += reply.stats.decode_s
        self.fp16_s += fp16_s
        self.differing_tokens += sum(a != b for a, b in zip(reply.tokens, fp16.tokens, strict=False))
        for entropy_bits, is_accepted in judged_drafts(rounds):
            index = bisect_right(ENTROPY_EDGES_BITS, entropy_bits)
            self.judged[index] += 1
            self.agreed[index] += is_accepted

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the contract."""
        return {
            "acceptance": self.accepted / self.drafted if self.drafted else None,
            "tokens_per_s": self.tokens / self.decode_s if self.decode_s else None,
            "speedup_over_fp16": self.fp16_s / self.decode_s if self.decode_s else None,
        }

    def bins(self) -> list[dict[str, Any]]:
        """Return acceptance in each bin of the draft's entropy."""
        edges = zip((0.0, *ENTROPY_EDGES_BITS), (*ENTROPY_EDGES_BITS, None), self.judged, self.agreed, strict=True)
        return [
            {"low_bits": low, "high_bits": high, "judged": judged, "acceptance": agreed / judged if judged else None}
            for low, high, judged, agreed in edges
        ]


@dataclass(frozen=True, slots=True)
class DraftComparison:
    """The score of every contestant, in all and by kind of text."""

    total: dict[Contestant, DraftScore]
    by_kind: dict[tuple[PromptKind, Contestant], DraftScore]

    def __add__(self, other: DraftComparison) -> DraftComparison:
        """Return both together; nobody may be in both."""
        return DraftComparison(self.total | other.total, self.by_kind | other.by_kind)

    @property
    def differing_tokens(self) -> int:
        """Return how many tokens of all replies are not plain FP16's; in mode exact none may be."""
        return sum(score.differing_tokens for score in self.total.values())

    def to_json(self) -> dict[str, Any]:
        """Return the tables ``drafts``, ``drafts_by_kind`` and ``acceptance``."""
        return {
            "drafts": [entrant.to_json() | score.to_json() for entrant, score in self.total.items()],
            "drafts_by_kind": [
                {"kind": str(kind)} | entrant.to_json() | score.to_json()
                for (kind, entrant), score in self.by_kind.items()
            ],
            "acceptance": [
                entrant.to_json() | {"bins": score.bins()} for entrant, score in self.total.items() if any(score.judged)
            ],
        }


def contestants(*, has_model: bool, lengths: Sequence[int]) -> tuple[Contestant, ...]:
    """Return everybody to compare, in the order of ``contestant_groups``."""
    first, others = contestant_groups(has_model=has_model, lengths=lengths)
    return (*first, *others)


def contestant_groups(
    *, has_model: bool, lengths: Sequence[int]
) -> tuple[tuple[Contestant, ...], tuple[Contestant, ...]]:
    """Return whom a user chooses between, adaptive and with every fixed length, and then the published stop rules.

    The best fixed length and the adaptive one stand in one group, so that they are compared in the same minutes.
    """
    drafters = (*((DrafterKind.MODEL,) if has_model else ()), DrafterKind.SELF)
    first = [Contestant(drafter, None, DraftRule.ENTROPY) for drafter in (*drafters, DrafterKind.NGRAM)]
    first += [Contestant(drafter, length, DraftRule.FIXED) for drafter in drafters for length in lengths]
    others = [Contestant(drafter, None, rule) for drafter in drafters for rule in _PUBLISHED_RULES]
    return tuple(first), (*others, Contestant(DrafterKind.NGRAM, max(lengths), DraftRule.FIXED))


def measure_drafts(
    session: Session,
    texts: Sequence[EvaluationText],
    entrants: Sequence[Contestant],
    *,
    progress: Progress,
    stage: str = "drafts",
) -> DraftComparison:
    """Let everybody draft for every text in changing order, after a few tokens to warm up."""
    total: dict[Contestant, DraftScore] = defaultdict(DraftScore)
    by_kind: dict[tuple[PromptKind, Contestant], DraftScore] = defaultdict(DraftScore)
    for entrant in entrants if texts else ():
        session.generate(texts[0].prompt, max_new_tokens=_WARM_UP_TOKENS, **_fields(entrant))
    for done, text in enumerate(texts):
        before = _plain(session, text)
        runs = {}
        for index, entrant in enumerate(in_turn(entrants, done)):
            progress(stage, done * len(entrants) + index, len(texts) * len(entrants))
            runs[entrant] = _run(session, text, entrant)
        after = _plain(session, text)
        fp16_s = (before.stats.decode_s + after.stats.decode_s) / 2
        for entrant, (reply, rounds) in runs.items():
            for score in (total[entrant], by_kind[text.kind, entrant]):
                score.add(reply, rounds, fp16=before, fp16_s=fp16_s)
    progress(stage, len(texts), len(texts))
    return DraftComparison(dict(total), dict(by_kind))


def in_turn(entrants: Sequence[Contestant], text: int) -> Sequence[Contestant]:
    """Return who drafts when for a text: nobody is always first, where caches grow and cores change their work."""
    first = text % max(len(entrants), 1)
    return (*entrants[first:], *entrants[:first])


def judged_drafts(rounds: Sequence[RoundRecord]) -> Iterator[tuple[float, bool]]:
    """Yield the entropy of every drafted token FP16 judged, and whether it was accepted."""
    for record in rounds:
        for index, entropy_bits in enumerate(record.draft_entropy_bits[: record.accepted + 1]):
            if entropy_bits is not None:
                yield entropy_bits, index < record.accepted


def _run(session: Session, text: EvaluationText, entrant: Contestant) -> tuple[Reply, Sequence[RoundRecord]]:
    generation = session.stream(text.prompt, max_new_tokens=max(len(text.reply), 1), **_fields(entrant))
    for _ in generation:
        pass
    return generation.reply, generation.rounds


def _plain(session: Session, text: EvaluationText) -> Reply:
    return session.generate(text.prompt, mode=Mode.FP16, max_new_tokens=max(len(text.reply), 1))


def _fields(entrant: Contestant) -> dict[str, Any]:
    return {"drafter": entrant.drafter, "draft_length": entrant.length, "rule": entrant.rule}
