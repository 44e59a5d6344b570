"""A run against plain FP16 on the same prompt: are the tokens the same, and how much faster was it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeprec.runtime.reply import Reply

__all__ = ["Comparison", "compare", "overall_speedup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``first_difference`` is the index of the first token that differs, None where none does."""

    tokens: int
    first_difference: int | None
    tokens_per_s: float | None
    baseline_tokens_per_s: float | None

    @property
    def is_identical(self) -> bool:
        """Whether every token is FP16's."""
        return self.first_difference is None

    @property
    def speedup(self) -> float | None:
        """Return how many times as fast as FP16 it was."""
        if not self.tokens_per_s or not self.baseline_tokens_per_s:
            return None
        return self.tokens_per_s / self.baseline_tokens_per_s

    @property
    def verdict(self) -> str:
        """Return the comparison of the tokens in words."""
        if self.first_difference is None:
            return f"all {self.tokens} tokens are FP16's"
        return f"differs from FP16 from token {self.first_difference} on"


def compare(reply: Reply, baseline: Reply) -> Comparison:
    """Compare a reply with FP16's on the same prompt."""
    return Comparison(
        tokens=len(reply.tokens),
        first_difference=_first_difference(reply.tokens, baseline.tokens),
        tokens_per_s=reply.stats.tokens_per_s,
        baseline_tokens_per_s=baseline.stats.tokens_per_s,
    )


def overall_speedup(pairs: Sequence[tuple[Reply, Reply]]) -> float | None:
    """Return FP16's seconds per token over the runs' seconds per token, all prompts together."""
    replies, baselines = ([pair[side] for pair in pairs] for side in (0, 1))
    cost, baseline_cost = _seconds_per_token(replies), _seconds_per_token(baselines)
    return baseline_cost / cost if cost and baseline_cost else None


def _seconds_per_token(replies: Sequence[Reply]) -> float | None:
    tokens = sum(max(reply.stats.new_tokens - 1, 0) for reply in replies)
    return sum(reply.stats.decode_s for reply in replies) / tokens if tokens else None


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
