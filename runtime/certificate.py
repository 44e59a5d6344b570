"""Shows that a mode gives FP16's tokens: every prompt is decoded twice and compared token by token.

Where an index differs, the gap between both tokens' logits in FP16 tells a near tie from a fault; while sampling, the
noise of that position belongs to the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from edgeprec.config import GenerationConfig, Mode, SamplingConfig
from edgeprec.runtime.reply import Reply
from edgeprec.runtime.sampling import Sampler
from edgeprec.runtime.session import Session

__all__ = ["TOLERANCE", "Certificate", "CertificateRow", "certify", "compare"]

TOLERANCE = 1e-3  # in units of logits


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """One prompt. ``first_difference`` is the first index whose token differs, None where none does.

    ``logit_gap`` is how much FP16 prefers its own token there, None without a difference, and infinite where one text
    just ends earlier.
    """

    prompt: str
    tokens: int
    first_difference: int | None
    logit_gap: float | None

    @property
    def is_identical(self) -> bool:
        """Whether every token is the same."""
        return self.first_difference is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All prompts. A gap below ``tolerance`` is a tie that two sums of the same numbers broke, any other a fault."""

    mode: Mode
    rows: tuple[CertificateRow, ...]
    tolerance: float = TOLERANCE

    @property
    def is_identical(self) -> bool:
        """Whether every token of every prompt is FP16's."""
        return all(row.is_identical for row in self.rows)

    @property
    def is_within_tolerance(self) -> bool:
        """Whether no token differs by more than a tie."""
        return all(row.logit_gap is None or row.logit_gap < self.tolerance for row in self.rows)

    @property
    def verdict(self) -> str:
        """Return ``identical``, ``within tolerance`` or ``different``."""
        if self.is_identical:
            return "identical"
        return "within tolerance" if self.is_within_tolerance else "different"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "mode": str(self.mode),
            "verdict": self.verdict,
            "identical": self.is_identical,
            "tolerance": self.tolerance,
            "prompts": len(self.rows),
            "tokens": sum(row.tokens for row in self.rows),
            "rows": [asdict(row) | {"identical": row.is_identical} for row in self.rows],
        }


def certify(
    session: Session,
    prompts: Sequence[str],
    *,
    config: GenerationConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """Decode every prompt with ``config`` and again in mode ``fp16`` with the same seed, and compare.

    ``progress`` is told prompts done and prompts in all.

    Raises:
        ConfigError: a prompt cannot be run.
    """
    rows: list[CertificateRow] = []
    for done, prompt in enumerate(prompts):
        progress(done, len(prompts))
        rows.append(_run(session, prompt, config))
    progress(len(prompts), len(prompts))
    return Certificate(mode=config.mode, rows=tuple(rows))


def compare(session: Session, prompt: str, reply: Reply, plain: Reply, *, sampling: SamplingConfig) -> CertificateRow:
    """Compare a reply with plain FP16's of the same prompt; ``sampling`` holds the seed both were drawn with."""
    index = _first_difference(reply.tokens, plain.tokens)
    gap = None
    if index is not None:
        text = [*session.tokenizer.encode(prompt), *plain.tokens[:index]]
        gap = _gap(session, text, (*plain.tokens[index : index + 1], *reply.tokens[index : index + 1]), sampling)
    return CertificateRow(prompt=prompt, tokens=len(plain.tokens), first_difference=index, logit_gap=gap)


def _run(session: Session, prompt: str, config: GenerationConfig) -> CertificateRow:
    reply = session.generate(prompt, config)
    sampling = replace(config.sampling, seed=reply.stats.seed)
    plain = session.generate(prompt, replace(config, mode=Mode.FP16, sampling=sampling))
    return compare(session, prompt, reply, plain, sampling=sampling)


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    if tuple(left) == tuple(right):
        return None
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _gap(session: Session, text: Sequence[int], choices: Sequence[int], sampling: SamplingConfig) -> float:
    """Return how much FP16 prefers one of two choices after ``text`` to the other; infinite without a second one."""
    if len(choices) < 2:
        return inf
    sampler = Sampler(sampling, session.info.vocab_size)
    return abs(sampler.gap(session.fp16_logits(text), *choices, position=len(text), history=text))
