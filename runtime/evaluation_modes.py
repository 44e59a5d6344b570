"""What each mode keeps of FP16's text: ``exact`` and ``gated`` by token, ``bounded`` by what FP16 says to its tokens.

Mode ``bounded`` promises that a token it emits is FP16's choice after the text so far with a probability of at least
1 - epsilon. So its own text is given to FP16 afterwards, and each token compared with FP16's choice at that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeprec.config import DrafterKind, Mode
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.evaluation_texts import EvaluationText, Progress
from edgeprec.runtime.reply import Reply, TokenSource
from edgeprec.runtime.session import Session
from edgeprec.runtime.token_match import TokenMatch, match_tokens

__all__ = ["BoundedFidelity", "ModeFidelity", "count_agreeing", "measure_modes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedFidelity:
    """Sums over the texts of mode ``bounded``, the first token of each left out: the prompt's pass in FP16 chose it."""

    tokens: int = 0
    agreeing: int = 0
    verified: int = 0  # looked at by FP16 before they were emitted, or FP16's own

    def __add__(self, other: BoundedFidelity) -> BoundedFidelity:
        return BoundedFidelity(
            tokens=self.tokens + other.tokens,
            agreeing=self.agreeing + other.agreeing,
            verified=self.verified + other.verified,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the contract."""
        count = self.tokens
        return {
            "agreement": self.agreeing / count if count else None,
            "verified_share": self.verified / count if count else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFidelity:
    """All modes. ``bounded`` None = this pair cannot run it, and ``bounded_note`` says why."""

    exact: TokenMatch
    gated: TokenMatch
    bounded: BoundedFidelity | None
    bounded_note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the contract."""
        return {
            "exact": {"token_match": self.exact.share},
            "bounded": None if self.bounded is None else self.bounded.to_json(),
            "gated": {"token_match": self.gated.share},
        }


def measure_modes(
    session: Session,
    texts: Sequence[EvaluationText],
    *,
    epsilon: float,
    progress: Progress,
    drafter: DrafterKind = DrafterKind.SELF,
) -> ModeFidelity:
    """Decode every text in the modes ``exact``, ``gated`` and ``bounded``."""
    exact, gated = TokenMatch(), TokenMatch()
    bounded, note = BoundedFidelity(), None
    for done, text in enumerate(texts):
        progress("modes", done, len(texts))
        asked: dict[str, Any] = {"max_new_tokens": max(len(text.reply), 1), "drafter": drafter}
        exact += match_tokens(session.generate(text.prompt, mode=Mode.EXACT, **asked).tokens, text.reply)
        gated += match_tokens(session.generate(text.prompt, mode=Mode.GATED, **asked).tokens, text.reply)
        if note is None:
            try:
                reply = session.generate(text.prompt, mode=Mode.BOUNDED, epsilon=epsilon, **asked)
            except ConfigError as error:
                note = str(error)
                continue
            bounded += _judge(session, text, reply)
    progress("modes", len(texts), len(texts))
    return ModeFidelity(exact=exact, gated=gated, bounded=None if note else bounded, bounded_note=note)


def count_agreeing(session: Session, prompt: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many of ``tokens``, the first left out, are FP16's choice after all that stands before them."""
    fp16 = Plan.uniform(Precision.FP16, num_layers=session.info.num_layers)
    text = [*prompt, *tokens]
    choices = np.concatenate([logits.argmax(-1) for logits in session.forced_logits(text[:-1], fp16)])
    return int(np.sum(choices[len(prompt) :] == np.asarray(tokens[1:])))


def _judge(session: Session, text: EvaluationText, reply: Reply) -> BoundedFidelity:
    later = reply.events[1:]
    if not later:
        return BoundedFidelity()
    return BoundedFidelity(
        tokens=len(later),
        agreeing=count_agreeing(session, text.prompt, reply.tokens),
        verified=sum(event.source is not TokenSource.UNVERIFIED for event in later),
    )
