"""One generation as an iterator of tokens: prefill, rounds, and the three ways it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from edgeprec.config import GenerationConfig
from edgeprec.decision import RoundPolicy
from edgeprec.errors import EdgePrecError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import Step
from edgeprec.runtime.governing import PowerGuard
from edgeprec.runtime.reply import FinishReason, Reply, RoundRecord, Stats, TokenEvent, TokenSource
from edgeprec.runtime.rounds import Emitted, RoundDecoder
from edgeprec.runtime.statistics import Tally
from edgeprec.runtime.stop_text import TextStream

__all__ = ["Generation", "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt's ids; the cache already holds FP16 entries of the first ``cached`` of them."""

    tokens: tuple[int, ...]
    cached: int = 0


@dataclass(slots=True)
class Generation:
    """Iterate over it for ``TokenEvent``; afterwards ``reply`` is there. ``cancel`` ends it after the pass at work.

    Leaving the loop early and never coming back counts as cancelling once ``reply`` is read. When a pass fails, its
    error comes out of the loop and ``reply`` holds what there was until then. It belongs to its session's thread;
    ``cancel`` and ``steps``, which counts parts of the prefill and rounds as they end, are for every thread.
    """

    prompt: Prompt
    config: GenerationConfig
    decoder: RoundDecoder
    controller: RoundPolicy
    text: TextStream
    tally: Tally
    window: AbstractContextManager[object]
    power: PowerGuard
    eos_token_ids: frozenset[int]
    context_tokens: int
    prefill_rows: int
    finish: Callable[[Generation], Stats]
    clock: Callable[[], int] = time.monotonic_ns
    check_thread: Callable[[], None] = lambda: None
    steps: int = 0
    events: list[TokenEvent] = field(default_factory=list)
    history: list[int] = field(default_factory=list)
    _reason: FinishReason | None = None
    _is_cancelled: bool = False
    _iterator: Iterator[TokenEvent] | None = None
    _reply: Reply | None = None

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        self.check_thread()
        if self._iterator is None:
            self._iterator = self._run()
        return next(self._iterator)

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        """Return the rounds so far."""
        return self.tally.rounds

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._is_cancelled

    def cancel(self) -> None:
        """End the generation; what was emitted stays, the reply says ``cancelled``."""
        self._is_cancelled = True

    @property
    def reply(self) -> Reply:
        """Return the whole reply. Read before the end, it cancels what is left."""
        if self._reply is None:
            self.cancel()
            for _ in self:
                pass
        assert self._reply is not None
        return self._reply

    def _run(self) -> Iterator[TokenEvent]:
        self.tally.start_ns = self.decoder.start_ns = self.clock()
        try:
            with self.window:
                yield from self._decode()
                self.decoder.mark("idle")
        except EdgePrecError:
            self._reason = FinishReason.ERROR
            raise
        finally:
            self._settle()

    def _decode(self) -> Iterator[TokenEvent]:
        self.history = list(self.prompt.tokens)
        first = self._prefill()
        if first is None:
            return
        self.tally.first_token_ns = self.clock()
        yield from self._emit([first])
        while not self._is_ended:
            outcome = self.decoder.run(self.history, room_tokens=self._room_tokens, bias=self.power.bias)
            if outcome is None:
                return
            self.steps += 1
            self.tally.rounds.append(outcome.record)
            yield from self._emit(outcome.tokens, outcome.record)
            if not self._is_ended:
                self.power.after_round(outcome.record, mark=self.decoder.mark)

    def _prefill(self) -> Emitted | None:
        """Run the prompt in FP16, a few rows at a time, and choose the first token from its last row.

        None = cancelled in between.
        """
        self.decoder.mark("prefill")
        tokens, engine = self.prompt.tokens, self.decoder.engine
        plan = Plan.uniform(Precision.FP16, num_layers=engine.info.num_layers)
        position = min(self.prompt.cached, len(tokens) - 1)
        while position < len(tokens):
            if self._is_cancelled:
                return None
            rows = tokens[position : position + self.prefill_rows]
            step = engine.forward(rows, position=position, plan=plan)
            position += len(rows)
            self.steps += 1
        first = self._first(step)
        if self.decoder.drafter is not None:
            self.decoder.drafter.prefill(tokens)
        return first

    def _first(self, step: Step) -> Emitted:
        """Choose the first token from the last row of the prompt's last pass."""
        token, entropy_bits = self.decoder.choose(step, -1, self.prompt.tokens)
        self.controller.observe_prefill(entropy_bits)
        return Emitted(token, entropy_bits, TokenSource.TARGET, 0, self.decoder.logprobs(step, -1, token))

    def _emit(self, tokens: Sequence[Emitted], record: RoundRecord | None = None) -> Iterator[TokenEvent]:
        """Add tokens to the text one by one until something ends the generation; the rest of a round is dropped."""
        for emitted in tokens:
            self.history.append(emitted.token)
            piece = self._push(emitted.token)
            event = TokenEvent(
                index=len(self.events),
                token=emitted.token,
                text=piece,
                entropy_bits=emitted.entropy_bits,
                gear=self.controller.gear if record is None else record.gear,
                source=emitted.source,
                round=0 if record is None else record.round,
                int4_layers=emitted.int4_layers,
                time_ns=self.clock() - self.tally.start_ns,
                logprobs=emitted.logprobs,
            )
            self.events.append(event)
            yield event
            if self._is_ended:
                return

    def _push(self, token: int) -> str:
        """Take a token into the text, see whether it ends the generation, return what may be shown."""
        if token in self.eos_token_ids and not self.config.ignore_eos:
            self._reason = FinishReason.STOP
            return self.text.flush()
        piece = self.text.push(token)
        if self._room_tokens <= 0:
            self._reason = FinishReason.LENGTH
            piece += self.text.flush()
        if self.text.is_stopped:
            self._reason = FinishReason.STOP
        return piece

    @property
    def _is_ended(self) -> bool:
        return self._reason is not None or self._is_cancelled

    @property
    def _room_tokens(self) -> int:
        """Return how many tokens may still be emitted."""
        left = self.config.max_new_tokens - (len(self.history) - len(self.prompt.tokens))
        return min(left, self.context_tokens - len(self.history))

    def _settle(self) -> None:
        """Build the reply from what there is, also after an error or an early end."""
        self.tally.end_ns = self.clock()
        self._reason = self._reason or FinishReason.CANCELLED
        self.text.flush()
        if self.text.is_stopped:
            del self.events[self.text.kept_tokens :]
        tokens = [event.token for event in self.events]
        self.history = [*self.prompt.tokens, *tokens]
        self._reply = Reply(
            text=self.text.text,
            tokens=tuple(tokens),
            finish_reason=self._reason,
            mode=self.config.mode,
            stats=self.finish(self),
            events=tuple(self.events),
        )
