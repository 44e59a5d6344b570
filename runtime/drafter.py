"""Who proposes tokens: the target's INT4 variant, a second model, an n-gram lookup, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgeprec.entropy import row_statistics
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import Engine
from edgeprec.runtime.ngram import NgramIndex
from edgeprec.runtime.passes import PassCounter
from edgeprec.runtime.sampling import Sampler

__all__ = ["Draft", "Drafter", "ModelDrafter", "NgramDrafter", "SelfDrafter"]


@dataclass(frozen=True, slots=True)
class Draft:
    """One proposed token; entropy in bits and the top-2 logit margin are None for a drafter without logits."""

    token: int
    entropy_bits: float | None
    margin: float | None


class Drafter(Protocol):
    """Proposes the token that follows ``history + pending``; keeps its own cache in step by rewinding."""

    @property
    def name(self) -> str:
        """Return ``self``, ``model`` or ``ngram``."""
        ...

    def prefill(self, prompt: Sequence[int]) -> None:
        """Take in the prompt before the first round, in FP16 like the target; no statistics count it."""
        ...

    def propose(self, history: Sequence[int], pending: Sequence[int], plan: Plan | None) -> Draft | None:
        """Return the next token, or None when there is nothing to propose. Only the n-gram lookup takes no plan."""
        ...

    def rewind(self, length: int) -> None:
        """Forget what was cached beyond ``length`` tokens: the rest was rejected."""
        ...


@dataclass(slots=True)
class SelfDrafter:
    """The target in INT4, in the target's own cache: FP16 verification rewrites what it wrote there."""

    engine: Engine
    sampler: Sampler
    passes: PassCounter
    name: str = "self"

    def prefill(self, prompt: Sequence[int]) -> None:
        """Nothing to do: the cache is the target's."""

    def propose(self, history: Sequence[int], pending: Sequence[int], plan: Plan | None) -> Draft | None:
        """Run one INT4 step on the last token."""
        assert plan is not None
        length = len(history) + len(pending)
        last = pending[-1] if pending else history[-1]
        result = self.engine.forward([last], position=length - 1, plan=plan)
        self.passes.add(plan, rows=1)
        return _choose(self.sampler, result.logits[-1], length, [*history, *pending])

    def rewind(self, length: int) -> None:
        """Nothing to do: the cache is the target's."""


@dataclass(slots=True)
class ModelDrafter:
    """A second model with a cache of its own. ``cached`` counts the tokens in it that belong to the text.

    A step feeds every token the cache lacks: after full acceptance that is the last draft token too, which leaves no
    hole. Only the ``shared_tokens`` first ids have the same meaning in both models; what lies beyond is never drafted,
    and a text that holds an id the draft model does not have is not drafted on any more.
    """

    engine: Engine
    sampler: Sampler
    passes: PassCounter
    shared_tokens: int
    cached: int = 0
    name: str = "model"

    def prefill(self, prompt: Sequence[int]) -> None:
        """Run what the cache lacks of the prompt in FP16, a few rows at a time."""
        plan = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        while self.cached < len(prompt) and self._knows(rows := self._next_rows(prompt)):
            self._run(rows, plan)

    def propose(self, history: Sequence[int], pending: Sequence[int], plan: Plan | None) -> Draft | None:
        """Run the draft model on what its cache lacks, usually one token."""
        assert plan is not None
        tokens = [*history, *pending]
        while self._knows(rows := self._next_rows(tokens)):
            logits = self._run(rows, plan)
            self.passes.add(plan, rows=len(rows))
            if self.cached == len(tokens):
                return _choose(self.sampler, self._shared(logits), len(tokens), tokens)
        return None

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens of the cache."""
        self.cached = min(self.cached, length)

    def _next_rows(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[self.cached : self.cached + self.engine.info.max_rows]

    def _knows(self, tokens: Sequence[int]) -> bool:
        return max(tokens) < self.engine.info.vocab_size

    def _run(self, tokens: Sequence[int], plan: Plan) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.engine.forward(tokens, position=self.cached, plan=plan).logits[-1]
        self.cached += len(tokens)
        return logits

    def _shared(self, row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a row as wide as the target's, without mass on ids the target does not have."""
        width = self.sampler.vocab_size
        if len(row) == width == self.shared_tokens:
            return row
        shared = np.full(width, -np.inf, np.float32)
        shared[: self.shared_tokens] = row[: self.shared_tokens]
        return shared


@dataclass(slots=True)
class NgramDrafter:
    """What followed the last few tokens when they last occurred in the text."""

    index: NgramIndex = field(default_factory=NgramIndex)
    name: str = "ngram"

    def prefill(self, prompt: Sequence[int]) -> None:
        """Index the prompt."""
        self.index.extend(prompt)

    def propose(self, history: Sequence[int], pending: Sequence[int], plan: Plan | None) -> Draft | None:
        """Look the last tokens up; ``plan`` plays no part."""
        self.index.extend(history[len(self.index) :])
        self.index.extend(pending[len(self.index) - len(history) :])
        found = self.index.propose(1)
        return Draft(found[0], None, None) if found else None

    def rewind(self, length: int) -> None:
        """Take back what was appended beyond ``length`` tokens."""
        self.index.truncate(min(length, len(self.index)))


def _choose(sampler: Sampler, logits: npt.NDArray[np.float32], position: int, tokens: Sequence[int]) -> Draft:
    statistics = row_statistics(logits.reshape(1, -1))
    token = sampler.choose(logits, position=position, history=tokens, argmax=int(statistics.argmax[0]))
    return Draft(token, float(statistics.entropy_bits[0]), float(statistics.margin[0]))
