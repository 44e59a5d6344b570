"""One text of a batch: its own length, samples, gear, end and statistics.

Taking tokens in has two halves. ``accept`` is what the next round depends on: the text's ids and whether they end it.
``book`` is what may happen while the device works: text, events, gear, records. A stop string is found in ``book``;
what the round at work then adds is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edgeprec.config import GenerationConfig, Mode
from edgeprec.controller import Controller
from edgeprec.entropy import SmoothedEntropy
from edgeprec.gears import Gear, GearState
from edgeprec.precision import Plan
from edgeprec.runtime.reply import FinishReason, Reply, RoundRecord, Stats, TokenEvent, TokenSource
from edgeprec.runtime.sampling import Sampler
from edgeprec.runtime.statistics import Tally
from edgeprec.runtime.stop_text import TextStream

__all__ = ["BatchSequence", "SequenceRound"]

_UNVERIFIED = (Mode.GATED, Mode.INT4)


class SequenceRound(NamedTuple):
    """What a round gave one sequence: drafts and their entropies, emitted tokens and theirs."""

    drafted: list[int]
    draft_bits: list[float | None]
    tokens: list[int]
    bits: list[float]
    accepted: int


@dataclass(slots=True)
class BatchSequence:
    """A text and where it stands. ``index`` is its place in the list, ``slot`` its place in the cache."""

    index: int
    prompt: tuple[int, ...]
    config: GenerationConfig
    sampler: Sampler
    controller: Controller
    text: TextStream
    tally: Tally
    eos_token_ids: frozenset[int]
    context_tokens: int
    gears: int  # rungs above the lowest
    slot: int = 0
    draft_cached: int = 0
    can_draft: bool = True
    history: list[int] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    is_full: bool = False  # its last token is in ``history``
    plan: Plan | None = None  # of the coming token where nobody verifies
    gear: Gear = Gear.HIGH
    _entropy: SmoothedEntropy = field(init=False)
    _gear: GearState = field(init=False)
    _reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.history = list(self.prompt)
        self._entropy = SmoothedEntropy(self.config.controller.window)
        self._gear = GearState.start(top=self.gears, band=self.controller.band, first_bits=None)

    @property
    def is_ended(self) -> bool:
        """Whether it takes no more tokens."""
        return self.is_full or self._reason is not None

    @property
    def is_verified(self) -> bool:
        """Whether FP16 reads what it emits."""
        return self.config.mode not in _UNVERIFIED

    @property
    def room_tokens(self) -> int:
        """Return how many tokens may still be emitted."""
        return self._limit - (len(self.history) - len(self.prompt))

    def accept(self, tokens: Sequence[int], bits: Sequence[float]) -> int:
        """Add tokens until one ends the text, and return how many were taken."""
        for count, token in enumerate(tokens, start=1):
            self.history.append(token)
            is_end = token in self.eos_token_ids and not self.config.ignore_eos
            if is_end or self.room_tokens <= 0:
                self.is_full = True
                return count
        if not self.is_verified and not self.is_full:
            self._next_plan(bits)
        return len(tokens)

    def begin(self, token: int, entropy_bits: float, now_ns: int) -> None:
        """Take the first token, which the prompt's last row gave."""
        self.controller.observe_prefill(entropy_bits)
        self._entropy = self._entropy.pushed(entropy_bits)
        self._gear = GearState.start(top=self.gears, band=self.controller.band, first_bits=self._entropy.bits)
        self.gear = self.controller.gear
        self.tally.first_token_ns = now_ns
        self.accept([token], ())
        self._event(token, entropy_bits, TokenSource.TARGET, 0, 0, now_ns)

    def book(self, found: SequenceRound, taken: int, record: RoundRecord, now_ns: int) -> None:
        """Turn the ``taken`` first tokens of a round into events and text."""
        self.tally.rounds.append(record)
        int4_layers = sum(record.draft_plan[:-1])
        gear = record.gear
        for place in range(taken):
            if self._reason is not None:
                return
            if not record.verified_rows:
                source, layers = TokenSource.UNVERIFIED, int4_layers
            else:
                is_draft = place < found.accepted
                source, layers = (TokenSource.DRAFT, int4_layers) if is_draft else (TokenSource.TARGET, 0)
            self._event(found.tokens[place], found.bits[place], source, layers, record.round, now_ns, gear)
            if record.verified_rows:
                self._entropy = self._entropy.pushed(found.bits[place])
                self._gear = self._gear.emitted(self._entropy.bits, self.controller.band)
                self.gear = self._gear.gear

    def settle(self, *, end_ns: int, reason: FinishReason | None = None) -> None:
        """End the text; ``reason`` is for one that did not end by itself."""
        self._reason = self._reason or reason or FinishReason.CANCELLED
        self.tally.end_ns = self.tally.end_ns or end_ns
        self.text.flush()
        if self.text.is_stopped:
            del self.events[self.text.kept_tokens :]

    def reply(self, stats: Stats) -> Reply:
        """Return the reply of the ended text."""
        assert self._reason is not None
        return Reply(
            text=self.text.text,
            tokens=tuple(event.token for event in self.events),
            finish_reason=self._reason,
            mode=self.config.mode,
            stats=stats,
            events=tuple(self.events),
        )

    @property
    def smoothed_bits(self) -> float | None:
        """Return the smoothed entropy of the emitted tokens."""
        return self._entropy.bits if self.is_verified else self.controller.smoothed_bits

    @property
    def _limit(self) -> int:
        return min(self.config.max_new_tokens, self.context_tokens - len(self.prompt))

    def _next_plan(self, bits: Sequence[float]) -> None:
        """Let the gear follow the tokens nobody verifies, and take the plan of the next one."""
        for value in bits:
            self.controller.observe_token(value)
        decision = self.controller.begin_round(room_tokens=1)
        self.plan, self.gear = decision.draft_plan, decision.gear

    def _event(
        self,
        token: int,
        entropy_bits: float,
        source: TokenSource,
        int4_layers: int,
        round_number: int,
        now_ns: int,
        gear: Gear | None = None,
    ) -> None:
        piece = self._push(token)
        self.events.append(
            TokenEvent(
                index=len(self.events),
                token=token,
                text=piece,
                entropy_bits=entropy_bits,
                gear=gear or self.gear,
                source=source,
                round=round_number,
                int4_layers=int4_layers,
                time_ns=now_ns - self.tally.start_ns,
            )
        )
        if self._reason is not None:
            self.tally.end_ns = now_ns

    def _push(self, token: int) -> str:
        """Take a token into the text and see whether it ends it, as a generation of its own does."""
        if token in self.eos_token_ids and not self.config.ignore_eos:
            self._reason = FinishReason.STOP
            return self.text.flush()
        piece = self.text.push(token)
        if len(self.events) + 1 >= self._limit:
            self._reason = FinishReason.LENGTH
            piece += self.text.flush()
        if self.text.is_stopped:
            self._reason = FinishReason.STOP
        return piece
