"""How many drafted tokens a target would accept, from one look at its own greedy text.

While everything drafted so far was accepted, the draft's input is the target's text itself. So whether the draft agrees
at each position of that text, teacher-forced, decides every round exactly: a round at position i accepts the run of
agreements that begins there, up to K, and the next round begins behind the token that verification adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Acceptance", "count_acceptance"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Tokens drafted, judged (those up to and including the first rejection of a round) and accepted."""

    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    rounds: int = 0

    @property
    def rate(self) -> float:
        """Accepted over drafted, the ``acceptance_rate`` of a reply."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_token(self) -> float:
        """Accepted over judged: how likely a drafted token is accepted when those before it were."""
        return self.accepted / self.judged if self.judged else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens that one verification yields, its own included."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafted + other.drafted,
            self.judged + other.judged,
            self.accepted + other.accepted,
            self.rounds + other.rounds,
        )


def count_acceptance(agreements: Iterable[Sequence[bool]], *, draft_length: int) -> Acceptance:
    """Play greedy rounds of ``draft_length`` over texts; ``agreements`` says where the draft's argmax is the text's."""
    total = Acceptance()
    for agrees in agreements:
        position = 0
        while position < len(agrees):
            window = agrees[position : position + draft_length]
            accepted = next((index for index, is_equal in enumerate(window) if not is_equal), len(window))
            total += Acceptance(len(window), min(accepted + 1, len(window)), accepted, 1)
            position += accepted + 1
    return total
