"""How much of FP16's text another decoding of the same prompt repeats: token by token, and up to the first difference.

FP16's text is the measure: what it has and the other lacks counts as different, what goes beyond it does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["TokenMatch", "match_tokens"]


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """Sums over texts; two of them add up."""

    texts: int = 0
    tokens: int = 0
    same: int = 0  # equal at the same place
    prefix: int = 0  # before the first difference

    def __add__(self, other: TokenMatch) -> TokenMatch:
        return TokenMatch(
            self.texts + other.texts,
            self.tokens + other.tokens,
            self.same + other.same,
            self.prefix + other.prefix,
        )

    @property
    def share(self) -> float | None:
        """Return the share of FP16's tokens found at their place, None without tokens."""
        return self.same / self.tokens if self.tokens else None

    @property
    def mean_prefix_tokens(self) -> float | None:
        """Return how many tokens a text agrees for from its beginning, on average."""
        return self.prefix / self.texts if self.texts else None


def match_tokens(tokens: Sequence[int], fp16: Sequence[int]) -> TokenMatch:
    """Compare the new tokens of one text with FP16's."""
    equal = [a == b for a, b in zip(tokens, fp16, strict=False)]
    prefix = equal.index(False) if False in equal else len(equal)
    return TokenMatch(texts=1, tokens=len(fp16), same=sum(equal), prefix=prefix)
