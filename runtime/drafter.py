"""Who proposes tokens: the target's INT4 variant, a second model, an n-gram lookup, or nobody.

An engine that drafts by itself (``DraftingEngine``) gives several greedy tokens at once; the drafter hands them out one
by one, and what the round does not take is forgotten. How many are asked for is ``chunk``: all that may be needed where
nothing but the cap stops a draft, few where each token may be the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgeprec.config import DrafterKind, DraftingConfig, DraftRule, GenerationConfig, Mode
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import DraftingEngine, Engine, RowFacts, Step, StepResult
from edgeprec.runtime.ngram import NgramIndex
from edgeprec.runtime.passes import PassCounter
from edgeprec.runtime.sampling import Sampler

__all__ = ["Draft", "Drafter", "ModelDrafter", "NgramDrafter", "SelfDrafter", "draft_chunk", "drafter_kind"]

_MOST_CHUNK = 16
_MODEL_CHUNK = 2  # a step of a small model costs little more than asking the host in between
_FUSED_ROWS = 16  # of the tokens the cache lacks


def drafter_kind(config: GenerationConfig, *, has_draft_model: bool) -> DrafterKind:
    """Return who drafts with a configuration: ``auto`` is the draft model where there is one, and nobody in vain."""
    if config.mode not in (Mode.EXACT, Mode.BOUNDED):
        return DrafterKind.NONE
    if config.mode is Mode.EXACT and config.drafting.draft_length == 0:
        return DrafterKind.NONE
    if config.drafting.drafter is not DrafterKind.AUTO:
        return config.drafting.drafter
    return DrafterKind.MODEL if has_draft_model else DrafterKind.SELF


def draft_chunk(drafting: DraftingConfig, *, kind: DrafterKind, mode: Mode) -> int:
    """Return how many tokens to draft before the host looks at them."""
    is_fixed = drafting.draft_length is not None or drafting.rule is DraftRule.FIXED
    if is_fixed and mode is Mode.EXACT:
        return _MOST_CHUNK
    return _MODEL_CHUNK if kind is DrafterKind.MODEL else 1


@dataclass(frozen=True, slots=True)
class Draft:
    """One proposed token; entropy in bits and the top-2 logit margin are None for a drafter without logits.

    ``is_followed`` = the next one is there already and costs nothing but its row in the verifying pass, so that a rule
    that asks whether one more draft pays does not end the draft here.
    """

    token: int
    entropy_bits: float | None
    margin: float | None
    is_followed: bool = False


class Drafter(Protocol):
    """Proposes the token that follows ``history + pending``; keeps its own cache in step by rewinding."""

    @property
    def name(self) -> str:
        """Return ``self``, ``model`` or ``ngram``."""
        ...

    def prefill(self, prompt: Sequence[int]) -> None:
        """Take in the prompt before the first round, in FP16 like the target; no statistics count it."""
        ...

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Return the next token, or None when there is nothing to propose. Only the n-gram lookup takes no plan.

        ``room`` is how many tokens this round may still draft, this one included.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget what was cached beyond ``length`` tokens: the rest was rejected."""
        ...


@dataclass(slots=True)
class _Ahead:
    """Drafts an engine has given and the round has not taken; they follow what was taken before."""

    engine: DraftingEngine | None
    chunk: int
    drafts: list[Draft] = field(default_factory=list)

    @classmethod
    def of(cls, engine: Engine, sampler: Sampler, chunk: int) -> _Ahead:
        """Return nothing yet; an engine's own drafts are of use only where the largest logit decides."""
        drafting = engine if isinstance(engine, DraftingEngine) else None
        return cls(drafting if sampler.takes_argmax else None, chunk)

    def fill(self, tokens: Sequence[int], *, position: int, plan: Plan, room: int, vocabulary: int) -> int:
        """Draft after ``tokens`` at ``position``, at most ``room``, and return how many tokens that gave."""
        assert self.engine is not None
        count = max(1, min(self.chunk, room, self.engine.max_draft_tokens))
        facts = self.engine.draft(tokens, position=position, plan=plan, count=count, vocabulary=vocabulary)
        self.drafts = [_draft(row) for row in facts]
        return count


@dataclass(slots=True)
class SelfDrafter:
    """The target in INT4, in the target's own cache: FP16 verification rewrites what it wrote there."""

    engine: Engine
    sampler: Sampler
    passes: PassCounter
    chunk: int = 1
    name: str = "self"
    _ahead: _Ahead = field(init=False)

    def __post_init__(self) -> None:
        self._ahead = _Ahead.of(self.engine, self.sampler, self.chunk)

    def prefill(self, prompt: Sequence[int]) -> None:
        """Nothing to do: the cache is the target's."""

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Run one INT4 step on the last token, or several at once."""
        assert plan is not None
        length = len(history) + len(pending)
        last = pending[-1] if pending else history[-1]
        ahead = self._ahead
        if ahead.engine is None:
            self.passes.add(plan, rows=1)
            step = self.engine.forward([last], position=length - 1, plan=plan)
            return _choose(self.sampler, step.logits[-1], length, [*history, *pending])
        if not pending or not ahead.drafts:
            width = self.engine.info.vocab_size
            for _ in range(ahead.fill([last], position=length - 1, plan=plan, room=room, vocabulary=width)):
                self.passes.add(plan, rows=1)
        return ahead.drafts.pop(0)

    def rewind(self, length: int) -> None:
        """Forget drafts the round did not take; the cache is the target's."""
        self._ahead.drafts.clear()


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
    chunk: int = 1
    name: str = "model"
    _ahead: _Ahead = field(init=False)

    def __post_init__(self) -> None:
        self._ahead = _Ahead.of(self.engine, self.sampler, self.chunk)

    def prefill(self, prompt: Sequence[int]) -> None:
        """Run what the cache lacks of the prompt in FP16, a few rows at a time."""
        plan = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        step = None
        while self.cached < len(prompt) and self._knows(rows := self._next_rows(prompt)):
            step = self._run(rows, plan)
        if step is not None:
            step.facts(-1)  # waits for the device, so that no draft is timed with the prompt before it

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Run the draft model on what its cache lacks, usually one token, or several steps at once."""
        assert plan is not None
        ahead = self._ahead
        if pending and ahead.drafts:
            return ahead.drafts.pop(0)
        tokens = [*history, *pending]
        self._catch_up(tokens)
        while self._knows(rows := self._next_rows(tokens)):
            is_last = self.cached + len(rows) == len(tokens)
            if is_last and ahead.engine is not None and len(rows) <= _FUSED_ROWS:
                return self._fused(rows, plan, room)
            step = self._run(rows, plan)
            self.passes.add(plan, rows=len(rows))
            if is_last:
                return self._chosen(step, tokens)
        return None

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Run what rounds without drafts left out like a prompt, but for what fits into the first draft's pass."""
        plan = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        while (lacking := len(tokens) - self.cached) > _FUSED_ROWS and self._knows(tokens):
            rows = self._next_rows(tokens)[: lacking - 1]
            self._run(rows, plan)
            self.passes.add(plan, rows=len(rows))

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens of the cache, and forget drafts the round did not take."""
        self._ahead.drafts.clear()
        self.cached = min(self.cached, length)

    def _fused(self, rows: Sequence[int], plan: Plan, room: int) -> Draft:
        count = self._ahead.fill(rows, position=self.cached, plan=plan, room=room, vocabulary=self.shared_tokens)
        self.cached += len(rows) + count - 1  # the last token drafted was not fed
        for fed in (len(rows), *(1,) * (count - 1)):
            self.passes.add(plan, rows=fed)
        return self._ahead.drafts.pop(0)

    def _chosen(self, step: Step, tokens: Sequence[int]) -> Draft:
        return _choose(self.sampler, self._shared(step.logits[-1]), len(tokens), tokens)

    def _next_rows(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[self.cached : self.cached + self.engine.info.max_rows]

    def _knows(self, tokens: Sequence[int]) -> bool:
        return max(tokens) < self.engine.info.vocab_size

    def _run(self, tokens: Sequence[int], plan: Plan) -> Step:
        """Bring tokens into the cache. Their logits stay where they are until somebody reads them."""
        step = self.engine.forward(tokens, position=self.cached, plan=plan)
        self.cached += len(tokens)
        return step

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

    def propose(
        self, history: Sequence[int], pending: Sequence[int], plan: Plan | None, *, room: int = 1
    ) -> Draft | None:
        """Look the last tokens up; ``plan`` plays no part."""
        self.index.extend(history[len(self.index) :])
        self.index.extend(pending[len(self.index) - len(history) :])
        found = self.index.propose(1)
        return Draft(found[0], None, None) if found else None

    def rewind(self, length: int) -> None:
        """Take back what was appended beyond ``length`` tokens."""
        self.index.truncate(min(length, len(self.index)))


def _choose(sampler: Sampler, logits: npt.NDArray[np.float32], position: int, tokens: Sequence[int]) -> Draft:
    facts = StepResult(logits.reshape(1, -1)).facts(0)
    token = sampler.choose(logits, position=position, history=tokens, argmax=facts.argmax)
    return Draft(token, facts.entropy_bits, facts.margin)


def _draft(facts: RowFacts) -> Draft:
    return Draft(facts.argmax, facts.entropy_bits, facts.margin)
