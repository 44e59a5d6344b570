"""How much of what a model wrote repeats itself: what flatters every drafter, so that it is said beside acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["LOOP_TOKENS", "loop_share"]

LOOP_TOKENS = 16


def loop_share(replies: Iterable[Sequence[int]], *, length: int = LOOP_TOKENS) -> float | None:
    """Return the share of all tokens that end a row of ``length`` tokens which the same reply held before.

    A reply that goes round in circles comes near 1, ordinary text is at 0; None where there is no token.
    """
    repeated = total = 0
    for tokens in replies:
        total += len(tokens)
        seen: set[tuple[int, ...]] = set()
        for end in range(length, len(tokens) + 1):
            row = tuple(tokens[end - length : end])
            repeated += row in seen
            seen.add(row)
    return repeated / total if total else None
