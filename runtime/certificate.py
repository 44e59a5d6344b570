"""Shows that a mode gives FP16's tokens: every prompt is decoded twice and compared token by token.

Where an index differs, the gap between both tokens' logits in FP16 tells a near tie from a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgeprec.config import GenerationConfig, Mode
from edgeprec.runtime.session import Session

__all__ = ["Certificate", "CertificateRow", "certify"]

TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """One prompt. ``first_difference`` is the first index whose token differs, None where none does.

    ``logit_gap`` is how much FP16 prefers its own token there, None without a difference.
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
        rows.append(_compare(session, prompt, config))
    progress(len(prompts), len(prompts))
    return Certificate(mode=config.mode, rows=tuple(rows))


def _compare(session: Session, prompt: str, config: GenerationConfig) -> CertificateRow:
    reply = session.generate(prompt, config)
    sampling = replace(config.sampling, seed=reply.stats.seed)
    plain = session.generate(prompt, replace(config, mode=Mode.FP16, sampling=sampling))
    index = _first_difference(reply.tokens, plain.tokens)
    gap = None if index is None else _gap(session, prompt, plain.tokens, reply.tokens, index)
    return CertificateRow(prompt=prompt, tokens=len(plain.tokens), first_difference=index, logit_gap=gap)


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    if tuple(left) == tuple(right):
        return None
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _gap(session: Session, prompt: str, plain: Sequence[int], other: Sequence[int], index: int) -> float:
    """Return how much larger FP16's logit of its own token is; infinite where one text just ends earlier."""
    if index >= min(len(plain), len(other)):
        return float("inf")
    logits = session.fp16_logits([*session.tokenizer.encode(prompt), *plain[:index]])
    return abs(float(logits[plain[index]]) - float(logits[other[index]]))
