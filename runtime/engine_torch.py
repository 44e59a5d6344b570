"""The torch engine: Triton kernels and CUDA graphs on a GPU, plain float32 on a CPU; one arena for the pair.

On a GPU a token's FP16 logits are the same bits in every pass it can be part of: alone, with others, in a batch, with
graphs and without. Lengths are read on the device, so one graph serves a kind of pass at every position. ``draft``
runs several greedy steps in one graph; the host reads one small buffer at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch

from edgeprec.errors import EngineError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_engine import BatchRounds
from edgeprec.runtime.engine import Engine, EngineInfo, RowFacts
from edgeprec.runtime.torch_device import device_errors
from edgeprec.runtime.torch_graphs import GraphCache, GraphReport
from edgeprec.runtime.torch_io import DeviceStep, PassIo, checked
from edgeprec.runtime.torch_model import PassShape, TorchModel

__all__ = ["MAX_DRAFT_TOKENS", "MAX_INT4_ROWS", "BatchStep", "TorchEngine", "as_engine_error"]

MAX_DRAFT_TOKENS = 8
MAX_INT4_ROWS = 16  # three levels: a draft of the longest kind and the token before it
_SPANS = (4096, 16_384, 65_536)  # attention launches are sized for one of these, or for the whole context
_VERIFY_ROWS = range(1, 17)
_PIECES = (32, 64, 128)  # rows of a prompt's passes, filled up to one of these: any length takes captured ones
# (rows, tokens) of drafts. A draft model lacks one token more after full acceptance, and all that FP16 decoded alone:
# those are caught up with while few tokens are asked for.
_DRAFTS = (*product((1, 2), range(1, MAX_DRAFT_TOKENS + 1)), *product(range(3, 17), (1, 2)))


class BatchStep(NamedTuple):
    """A pass over several sequences; row t of sequence b is row ``b * rows_per_sequence + t`` of ``step``."""

    step: DeviceStep
    rows_per_sequence: int

    def facts(self, sequence: int, row: int) -> RowFacts:
        """Return argmax, entropy and margin after token ``row`` of a sequence."""
        return self.step.facts(sequence * self.rows_per_sequence + row)


class _PassKey(NamedTuple):
    """What distinguishes one graph from another."""

    rows: int
    rows_per_sequence: int
    drafted: int  # 0 = an ordinary pass
    gates: tuple[bool, ...]
    span: int
    vocabulary: int


class TorchEngine:
    """One model of a pair. Not safe for several threads at once; see ``torch_opening`` for how it is made.

    ``info`` describes it as it was opened; notes of graphs that failed come on top.
    """

    def __init__(self, model: TorchModel, io: PassIo, graphs: GraphCache, info: EngineInfo) -> None:
        self._model: TorchModel | None = model
        self._io = io
        self._graphs = graphs
        self._info = info
        self._context_tokens = info.context_tokens
        self._sequences = int(model.cache[0].keys.shape[0])
        self._passes = 0
        self._rounds: dict[tuple[int, int], BatchRounds] = {}  # graphs know their buffers: they live with the engine

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        note = self._graphs.note
        if note is not None and note not in self._info.fallbacks:
            self._info = replace(self._info, fallbacks=(*self._info.fallbacks, note))
        return self._info

    @property
    def max_draft_tokens(self) -> int:
        """Return how many tokens one call of ``draft`` may ask for."""
        return MAX_DRAFT_TOKENS

    @property
    def graph_report(self) -> GraphReport:
        """Return how many kinds of passes were captured and what a switch to a new one took."""
        return self._graphs.report

    @property
    def first_passes(self) -> int:
        """Return how many passes so far were the first of their kind, or captured it: they took longer."""
        return self._graphs.first_passes

    @property
    def sequences(self) -> int:
        """Return how many texts the cache holds."""
        return self._sequences

    @property
    def model(self) -> TorchModel:
        """Return weights, cache and buffers.

        Raises:
            EngineError: the engine is closed.
        """
        if self._model is None:
            raise EngineError("this engine is closed: open the bundle again")
        return self._model

    @property
    def graphs(self) -> GraphCache:
        """Return the graphs of this engine's passes."""
        return self._graphs

    def begin_pass(self) -> None:
        """Make the pass before unreadable: its logits are overwritten now."""
        self._passes += 1

    def move_sequence(self, source: int, to: int, *, tokens: int) -> None:
        """Copy the cache of the first ``tokens`` tokens from one slot to another."""
        with as_engine_error(tokens):
            for part in (part for layer in self.model.cache for part in layer):
                part[to, :, :tokens].copy_(part[source, :, :tokens])

    def open_rounds(self, drafter: Engine | None, *, vocabulary: int) -> BatchRounds | None:
        """Return what runs a batch's rounds on the device; None where the drafter is no torch engine."""
        from edgeprec.runtime.torch_batch import TorchRounds

        if drafter is not None and not isinstance(drafter, TorchEngine):
            return None
        key = (id(drafter), vocabulary)
        if key not in self._rounds:
            self._rounds[key] = TorchRounds(self, drafter, vocabulary=vocabulary, serial=len(self._rounds))
        return self._rounds[key]

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> DeviceStep:
        """Run ``tokens`` at ``position`` of sequence 0; see the protocol."""
        width = self._filled(len(tokens))
        return self.forward_batch([tokens], positions=[position], plan=plan, width=width).step.first(len(tokens))

    def _filled(self, rows: int) -> int:
        if rows <= _VERIFY_ROWS[-1] or self._graphs.capture is None:
            return rows
        return next((piece for piece in _PIECES if rows <= piece <= self._info.max_rows), rows)

    def forward_batch(
        self, tokens: Sequence[Sequence[int]], *, positions: Sequence[int], plan: Plan, width: int = 0
    ) -> BatchStep:
        """Run tokens [B][T_b] of sequences 0 .. B - 1, each at its own position; a T_b of 0 leaves a sequence out.

        Rows are laid out as if every sequence had the longest T_b, or ``width``; those that are not there write
        nothing, and their facts mean nothing.

        Raises:
            EngineError: the pass failed, or sequences, rows, ids or positions are out of range.
        """
        widest = max((len(row) for row in tokens), default=0)
        widest = max(widest, width) if widest else 0
        self._check(tokens, positions, widest, plan)
        flat_tokens, flat_positions = [], []
        for row, position in zip(tokens, positions, strict=True):
            missing = widest - len(row)
            flat_tokens += [*row, *(0,) * missing]
            flat_positions += [*range(position, position + len(row)), *(-1,) * missing]
        longest = max(position + len(row) for row, position in zip(tokens, positions, strict=True))
        key = _PassKey(len(flat_tokens), widest, 0, plan.gates, self.span_of(longest), 0)
        logits = self._run(key, flat_tokens, flat_positions, lambda model: self._verify_pass(model, key))
        return BatchStep(self._step(logits), widest)

    def draft(
        self, tokens: Sequence[int], *, position: int, plan: Plan, count: int, vocabulary: int
    ) -> tuple[RowFacts, ...]:
        """Run ``tokens`` at ``position``, then each greedy token in turn; see the protocol ``DraftingEngine``."""
        rows = len(tokens)
        self._check([tokens], [position], rows, plan)
        vocabulary = min(vocabulary, self._info.vocab_size)
        last = position + rows + count - 1
        if not 1 <= count <= MAX_DRAFT_TOKENS or last > self._context_tokens or vocabulary < 2:
            raise EngineError(
                f"a draft has {count} tokens after {position + rows} among {vocabulary} ids, expected 1 to "
                f"{MAX_DRAFT_TOKENS} inside the context of {self._context_tokens} and 2 ids or more"
            )
        if not self._io.has_statistics:
            return self._draft_on_host(tokens, position=position, plan=plan, count=count, vocabulary=vocabulary)
        key = _PassKey(rows, rows, count, plan.gates, self.span_of(last), vocabulary)
        self._run(key, tokens, range(position, last), lambda model: self._draft_pass(model, key))
        with as_engine_error(position):
            facts = self._io.facts()
        return tuple(checked(row, index, vocabulary=vocabulary) for index, row in enumerate(facts))

    def warm_up(self, *, int4_rows: int = 1) -> None:
        """Compile and capture the passes that a text uses: FP16 of 1 to 16 rows and of prompts, INT4, drafts.

        ``int4_rows`` is how many rows an INT4 pass may have: more than 1 where a draft model's tokens are verified by
        it. The first slots of the cache are overwritten: call it before there is any text.
        """
        fp16, int4 = (Plan.uniform(kind, num_layers=self._info.num_layers) for kind in (Precision.FP16, Precision.INT4))
        vocabulary = self._info.vocab_size
        for _ in range(2):  # the first run compiles, the second captures
            for rows in (*_VERIFY_ROWS, *_PIECES):
                if rows <= min(self._context_tokens, self._info.max_rows):
                    self.forward([0] * rows, position=0, plan=fp16)
            for rows in range(1, int4_rows + 1):
                if rows <= self._context_tokens:
                    self.forward([0] * rows, position=0, plan=int4)
            for rows, count in _DRAFTS:
                if rows + count <= self._context_tokens:
                    self.draft([0] * rows, position=0, plan=int4, count=count, vocabulary=vocabulary)
        with as_engine_error(0):
            self._io.facts()

    def close(self) -> None:
        """Let go of the model, its cache and its graphs; calling it twice is harmless."""
        self._graphs.clear()
        self._rounds.clear()
        self._model = None

    def _verify_pass(self, model: TorchModel, key: _PassKey) -> None:
        hidden = self._layers(model, key, self._io.tokens[: key.rows], 0)
        logits = model.logits(hidden, is_int4=key.gates[-1])
        if self._io.has_statistics:
            model.statistics(logits)

    def _draft_pass(self, model: TorchModel, key: _PassKey) -> None:
        tokens, first = self._io.tokens[: key.rows], 0
        for step in range(key.drafted):
            hidden = self._layers(model, key, tokens, first)
            first += tokens.numel()
            logits = model.logits(hidden[-1:], is_int4=key.gates[-1])
            tokens = model.statistics(logits, first=step, vocabulary=key.vocabulary)

    def _layers(self, model: TorchModel, key: _PassKey, tokens: torch.Tensor, first: int) -> torch.Tensor:
        rows = tokens.numel()
        positions = self._io.positions[first : first + rows]
        rows_per_sequence = key.rows_per_sequence if rows == key.rows else rows
        shape = PassShape(rows_per_sequence=rows_per_sequence, span=key.span)
        return model.run(tokens, positions, shape=shape, gates=key.gates)

    def _run(
        self,
        key: _PassKey,
        tokens: Sequence[int],
        positions: Sequence[int],
        body: Callable[[TorchModel], None],
    ) -> torch.Tensor:
        model = self.model
        self.begin_pass()
        with as_engine_error(positions[0]):
            self._io.put(tokens, positions)
            self._graphs.run(key, lambda: body(model))
            self._io.publish(model.buffers.statistics, key.drafted or key.rows)
        return model.buffers.logits[: key.rows]

    def _draft_on_host(
        self, tokens: Sequence[int], *, position: int, plan: Plan, count: int, vocabulary: int
    ) -> tuple[RowFacts, ...]:
        """Draft with one pass a token: on a CPU there is nothing to save."""
        found: list[RowFacts] = []
        for _ in range(count):
            step = self.forward(tokens, position=position, plan=plan)
            found.append(step.narrowed(vocabulary).facts(-1))
            position += len(tokens)
            tokens = [found[-1].argmax]
        return tuple(found)

    def _step(self, logits: torch.Tensor) -> DeviceStep:
        serial = self._passes
        return DeviceStep(self._io, logits, lambda: self._passes == serial)

    def span_of(self, tokens: int) -> int:
        """Return the smallest launch that sees so many tokens."""
        limit = next((span for span in _SPANS if tokens <= span), self._context_tokens)
        return min(limit, self._context_tokens)

    def _check(self, tokens: Sequence[Sequence[int]], positions: Sequence[int], widest: int, plan: Plan) -> None:
        info = self._info
        _ = self.model
        if not 1 <= len(tokens) <= self._sequences or len(positions) != len(tokens):
            raise EngineError(
                f"a pass has {len(tokens)} sequences and {len(positions)} positions, expected 1 to {self._sequences}"
            )
        if not 1 <= widest * len(tokens) <= info.max_rows:
            raise EngineError(f"a pass has {widest * len(tokens)} rows, expected 1 to {info.max_rows}")
        for row, position in zip(tokens, positions, strict=True):
            if position < 0 or position + len(row) > self._context_tokens:
                raise EngineError(
                    f"a pass of {len(row)} rows at position {position} leaves the context of "
                    f"{self._context_tokens} tokens"
                )
            wrong = next((token for token in row if not 0 <= token < info.vocab_size), None)
            if wrong is not None:
                raise EngineError(f"a pass failed at position {position}: the model has no token {wrong}")
        if plan.num_layers != info.num_layers:
            raise EngineError(f"the plan is for {plan.num_layers} layers, the model has {info.num_layers}")


@contextmanager
def as_engine_error(position: int) -> Iterator[None]:
    """Turn what torch raises, a lost GPU too, into the error that keeps the text so far."""
    try:
        yield
    except device_errors() as error:
        reason = str(error).strip().partition("\n")[0] or "it gave no reason"
        raise EngineError(f"torch failed at position {position}: {reason[:300]}") from error
