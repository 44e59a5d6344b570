"""A toy model in an engine that checks its own cache: holes, stale entries and INT4 leftovers raise ``CacheFault``.

The toy's logits depend on nothing but the tokens before them. Its INT4 variant agrees with FP16 always, never or
sometimes. Every cache slot remembers which token and precision wrote it and on top of which slot, so a pass can tell
whether all it sees is one text written in order. An FP16 pass that meets what INT4 left is a fault too, unless
``accepts_int4`` is set; it then gives other logits than clean FP16 would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgeprec.errors import EngineError
from edgeprec.precision import Plan
from edgeprec.runtime.engine import EngineInfo, RowFacts, StepResult
from edgeprec.runtime.sampling import Sampler

Agreement = Literal["always", "never", "sometimes"]
Row = npt.NDArray[np.float32]

ROOT = 0x9E3779B97F4A7C15
FORCED_LOGIT = 50.0


class CacheFault(AssertionError):
    """A pass read a cache that does not hold the text it should."""


def mixed(parent: int, word: int) -> int:
    """Return the identity of a text with one more word."""
    return (parent * 6364136223846793005 + word * 2862933555777941757 + 3037000493) % 2**64


@dataclass
class ToyModel:
    """Logits as a pure function of the text. ``forced`` names tokens by their index in the text, for every variant.

    A row's scale varies, so that some choices are nearly certain and others nearly even.
    """

    vocab_size: int = 27
    seed: int = 1
    forced: Mapping[int, int] = field(default_factory=dict)
    scales: tuple[float, ...] = (0.5, 2.0, 6.0)
    known: dict[int, tuple[Row, bool]] = field(default_factory=dict)

    def row(self, text: int, length: int) -> Row:
        """Return FP16's logits [V] after a text of ``length`` tokens with the identity ``text``."""
        row = self._drawn(text)[0]
        if length in self.forced:
            row = row.copy()
            row[self.forced[length]] = FORCED_LOGIT
        return row

    def int4_row(self, text: int, length: int, agreement: Agreement) -> Row:
        """Return INT4's logits [V]: FP16's, or those shifted by one token."""
        is_same = agreement == "always" or (agreement == "sometimes" and self._drawn(text)[1])
        row = self.row(text, length)
        return row if is_same or length in self.forced else np.roll(row, 1)

    def _drawn(self, text: int) -> tuple[Row, bool]:
        if text not in self.known:
            random = np.random.default_rng((self.seed, text))
            scale = self.scales[random.integers(len(self.scales))]
            row = (scale * random.standard_normal(self.vocab_size)).astype(np.float32)
            self.known[text] = row, bool(random.integers(3))
        return self.known[text]

    def identity(self, tokens: Sequence[int]) -> int:
        """Return the identity of a text."""
        text = ROOT
        for token in tokens:
            text = mixed(text, token)
        return text

    def decode(
        self, prompt: Sequence[int], count: int, *, sampler: Sampler | None = None, ends: Sequence[int] = ()
    ) -> list[int]:
        """Return the tokens plain FP16 decoding must give, computed without engine, cache or session."""
        tokens = list(prompt)
        text = self.identity(prompt)
        while len(tokens) < len(prompt) + count:
            row = self.row(text, len(tokens))
            token = int(row.argmax())
            if sampler is not None:
                token = sampler.choose(row, position=len(tokens), history=tokens)
            tokens.append(token)
            text = mixed(text, token)
            if token in ends:
                break
        return tokens[len(prompt) :]


@dataclass(frozen=True)
class Slot:
    """A cache entry: who wrote it, on top of which entry, and the text up to it without precisions."""

    is_int4: bool
    parent: int
    identity: int  # tokens and precisions up to here
    text: int  # tokens up to here
    is_clean: bool  # FP16 wrote all up to here


FIRST = Slot(is_int4=False, parent=0, identity=ROOT, text=ROOT, is_clean=True)


@dataclass(frozen=True)
class Pass:
    """What one call of ``forward`` was asked."""

    tokens: tuple[int, ...]
    position: int
    plan: Plan

    @property
    def is_fp16(self) -> bool:
        """Whether nothing ran in INT4."""
        return self.plan.is_fp16


@dataclass
class Ticks:
    """A clock that moves when the engine works: nanoseconds per pass and per further row."""

    now_ns: int = 5_000_000
    int4_ns: int = 1_000
    fp16_ns: int = 4_000
    row_ns: int = 100

    def __call__(self) -> int:
        return self.now_ns

    def work(self, plan: Plan, rows: int) -> None:
        """Let a pass take its time."""
        self.now_ns += (self.fp16_ns if plan.is_fp16 else self.int4_ns) + self.row_ns * (rows - 1)


@dataclass
class FakeEngine:
    """An engine over a toy. ``width`` cuts or pads the vocabulary; padding has the largest logits of all.

    ``before_pass`` sees every pass first; it may raise, or cancel a generation.
    """

    model: ToyModel
    agreement: Agreement = "always"
    context_tokens: int = 64
    num_layers: int = 3
    max_rows: int = 16
    width: int | None = None
    always_int4: bool = False  # FP16 passes too give what INT4 gives: a draft model that is another model
    accepts_int4: bool = False
    clock: Ticks = field(default_factory=Ticks)
    before_pass: Callable[[Pass], object] = lambda _: None
    passes: list[Pass] = field(default_factory=list)
    closed: int = 0
    fallbacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.slots: list[Slot | None] = [None] * (self.context_tokens + 1)
        self._last = np.zeros((0, 0), np.float32)

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        return EngineInfo(
            name="fake",
            device="cpu",
            num_layers=self.num_layers,
            vocab_size=self.width or self.model.vocab_size,
            context_tokens=self.context_tokens,
            max_rows=self.max_rows,
            memory_bytes=0,
            has_bitwise_rows=True,
            fallbacks=self.fallbacks,
        )

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> StepResult:
        """Write the slots of ``tokens`` and return their logits; the array of the pass before becomes NaN."""
        asked = Pass(tuple(tokens), position, plan)
        self._check(asked)
        self.before_pass(asked)
        self.passes.append(asked)
        self._last.fill(np.nan)
        self.clock.work(plan, len(tokens))
        self._require_text(position)
        self._last = np.stack([self._step(token, position + row, plan) for row, token in enumerate(tokens)])
        if plan.is_fp16 and len(tokens) == 1:
            self.slots[position + 1] = None  # as a real engine's padding row does
        return StepResult(self._last)

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def _check(self, asked: Pass) -> None:
        if self.closed:
            raise EngineError("the engine is closed")
        if not 1 <= len(asked.tokens) <= self.max_rows:
            raise EngineError(f"a pass has {len(asked.tokens)} rows")
        if asked.position < 0 or asked.position + len(asked.tokens) > self.context_tokens:
            raise EngineError(f"a pass at {asked.position} leaves the context")
        if asked.plan.num_layers != self.num_layers:
            raise EngineError(f"the plan is for {asked.plan.num_layers} layers")
        if not all(0 <= token < self.info.vocab_size for token in asked.tokens):
            raise CacheFault(f"{asked.tokens} hold an id the model does not have")

    def _require_text(self, position: int) -> None:
        parent = FIRST
        for index, slot in enumerate(self.slots[:position]):
            if slot is None:
                raise CacheFault(f"slot {index} is a hole below position {position}")
            if slot.parent != parent.identity:
                raise CacheFault(f"slot {index} is stale below position {position}")
            parent = slot

    def _step(self, token: int, position: int, plan: Plan) -> Row:
        parent = self.slots[position - 1] if position else FIRST
        assert parent is not None
        is_int4 = not plan.is_fp16
        if not is_int4 and not parent.is_clean and not (self.accepts_int4 or self.always_int4):
            raise CacheFault(f"FP16 at position {position} reads what INT4 left in the cache")
        slot = Slot(
            is_int4=is_int4,
            parent=parent.identity,
            identity=mixed(parent.identity, 2 * token + is_int4),
            text=mixed(parent.text, token),
            is_clean=parent.is_clean and not is_int4,
        )
        self.slots[position] = slot
        return self._widened(self._logits(slot, position + 1))

    def _logits(self, slot: Slot, length: int) -> Row:
        if slot.is_int4 or self.always_int4:
            return self.model.int4_row(slot.text, length, self.agreement)
        return self.model.row(slot.text if slot.is_clean else slot.identity, length)

    def _widened(self, row: Row) -> Row:
        width = self.width or len(row)
        wide = np.full(width, 2 * FORCED_LOGIT, np.float32)
        wide[: len(row)] = row[:width]
        return wide


@dataclass
class DraftingFake(FakeEngine):
    """The same engine, drafting several greedy tokens in one call; ``calls`` notes rows and counts of each."""

    max_draft_tokens: int = 8
    calls: list[tuple[int, int]] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], *, position: int, plan: Plan, count: int, vocabulary: int) -> list[RowFacts]:
        """Run single passes and note the call."""
        assert 1 <= count <= self.max_draft_tokens
        self.calls.append((len(tokens), count))
        found: list[RowFacts] = []
        for _ in range(count):
            logits = self.forward(tokens, position=position, plan=plan).logits[:, :vocabulary]
            found.append(StepResult(logits).facts(-1))
            position += len(tokens)
            tokens = [found[-1].argmax]
        return found
