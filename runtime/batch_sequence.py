"""One text of a batch: its own length, samples, gear, end and statistics.

Taking tokens in has two halves. ``accept`` is what the next round depends on: the text's ids and whether they end it.
``book`` is what may happen while the device works: text, events, gear, records. A stop string is found in ``book``;
what the round at work then adds is dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from edgeprec.config import GenerationConfig, Mode
from edgeprec.controller import Controller
from edgeprec.gears import Band, Gear
from edgeprec.precision import Plan
from edgeprec.runtime.reply import FinishReason, Reply, Stats, TokenEvent, TokenSource
from edgeprec.runtime.sampling import Sampler
from edgeprec.runtime.statistics import Tally
from edgeprec.runtime.stop_text import TextStream

__all__ = ["BatchSequence", "GearTrack", "SequenceRound"]

_UNVERIFIED = (Mode.GATED, Mode.INT4)


class SequenceRound(NamedTuple):
    """What a round gave one sequence: drafts and their entropies, emitted tokens and theirs."""

    drafted: list[int]
    draft_bits: list[float | None]
    tokens: list[int]
    bits: list[float]
    accepted: int


@dataclass(slots=True)
class GearTrack:
    """What ``SmoothedEntropy`` and ``GearState`` say after every emitted token, without a new value for each."""

    window: int
    top: int
    band: Band
    rung: int = 0
    _bits: deque[float] = field(init=False)
    _since: int = 0

    def __post_init__(self) -> None:
        self._bits = deque(maxlen=self.window)

    @property
    def gear(self) -> Gear:
        """Return the rung's name."""
        if self.rung == 0:
            return Gear.LOW
        return Gear.HIGH if self.rung == self.top else Gear.MIDDLE

    def start(self, entropy_bits: float) -> None:
        """Take FP16's entropy of the prompt's last row."""
        self._bits.append(entropy_bits)
        self.rung = 0 if self.band.direction(entropy_bits) < 0 else self.top

    def emit(self, entropy_bits: float) -> None:
        """Take one emitted token."""
        self._bits.append(entropy_bits)
        self._since += 1
        if self._since < self.band.hold_tokens:
            return
        rung = min(max(self.rung + self.band.direction(sum(self._bits) / len(self._bits)), 0), self.top)
        if rung != self.rung:
            self.rung, self._since = rung, 0


@dataclass(slots=True)
class BatchSequence:
    """A text and where it stands. ``index`` is its place in the list, ``slot`` its place in the cache."""

    index: int
    prompt: tuple[int, ...]
    config: GenerationConfig
    sampler: Sampler
    controller: Controller
    text: TextStream
    tally: Tally  # its rounds stay empty: a batch counts them here
    eos_token_ids: frozenset[int]
    context_tokens: int
    gears: int  # rungs above the lowest
    slot: int = 0
    draft_cached: int = 0
    wants_drafts: bool = False
    can_draft: bool = True
    history: list[int] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    is_ended: bool = False
    is_verified: bool = field(init=False)
    room_tokens: int = field(init=False)  # how many may still be emitted
    plan: Plan | None = None  # of the coming token where nobody verifies
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: Counter[tuple[Plan, int, bool]] = field(default_factory=Counter)  # plan, rows, whether of the drafter
    _track: GearTrack = field(init=False)
    _limit: int = field(init=False)
    _ends: frozenset[int] = field(init=False)
    _reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.history = list(self.prompt)
        self.is_verified = self.config.mode not in _UNVERIFIED
        self._limit = self.room_tokens = min(self.config.max_new_tokens, self.context_tokens - len(self.prompt))
        self._ends = frozenset() if self.config.ignore_eos else self.eos_token_ids
        self._track = GearTrack(self.config.controller.window, self.gears, self.controller.band)

    @property
    def gear(self) -> Gear:
        """Return the gear entropy asks for: after what was booked, or of the coming token where nobody verifies."""
        return self._track.gear if self.is_verified else self.controller.gear

    def accept(self, tokens: Sequence[int], bits: Sequence[float]) -> int:
        """Add tokens until one ends the text, and return how many were taken."""
        for count, token in enumerate(tokens, start=1):
            self.history.append(token)
            self.room_tokens -= 1
            if self.room_tokens <= 0 or token in self._ends:
                self.is_ended = True
                return count
        if not self.is_verified:
            self._next_plan(bits)
        return len(tokens)

    def begin(self, token: int, entropy_bits: float, now_ns: int) -> None:
        """Take the first token, which the prompt's last row gave."""
        self.controller.observe_prefill(entropy_bits)
        self._track.start(entropy_bits)
        gear = self.gear
        self.tally.first_token_ns = now_ns
        self.accept([token], ())
        self._event(token, entropy_bits, TokenSource.TARGET, 0, gear, now_ns)

    def book(self, found: SequenceRound, taken: int, *, gear: Gear, int4_layers: int, now_ns: int) -> None:
        """Turn the ``taken`` first tokens of a round into events and text.

        ``gear`` is the round's, ``int4_layers`` those of its drafts, or of its token where nobody verified it.
        """
        self.rounds += 1
        self.drafted += len(found.drafted)
        self.accepted += found.accepted
        for place in range(taken):
            if self._reason is not None:
                return
            bits = found.bits[place]
            if not self.is_verified:
                self._event(found.tokens[place], bits, TokenSource.UNVERIFIED, int4_layers, gear, now_ns)
                continue
            if place < found.accepted:
                self._event(found.tokens[place], bits, TokenSource.DRAFT, int4_layers, gear, now_ns)
            else:
                self._event(found.tokens[place], bits, TokenSource.TARGET, 0, gear, now_ns)
            self._track.emit(bits)

    def settle(self, *, end_ns: int, reason: FinishReason) -> None:
        """End the text; ``reason`` is for one that did not end by itself."""
        self._reason = self._reason or reason
        self.is_ended = True
        self.tally.end_ns = self.tally.end_ns or end_ns
        self.text.flush()
        if self.text.is_stopped:
            del self.events[self.text.kept_tokens :]

    def stats(self, **facts: Any) -> Stats:
        """Return the statistics of the ended text; ``facts`` as for ``Tally.stats``."""
        for (plan, rows, is_draft), times in self.passes.items():
            (self.tally.draft if is_draft else self.tally.target).add(plan, rows=rows, times=times)
        self.passes.clear()
        stats = self.tally.stats(new_tokens=len(self.events), **facts)
        return replace(
            stats,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            acceptance_rate=self.accepted / self.drafted if self.drafted else None,
            mean_draft_length=self.drafted / self.rounds if self.rounds else None,
            verify_rounds=self.rounds if self.is_verified else 0,
        )

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

    def _next_plan(self, bits: Sequence[float]) -> None:
        """Let the gear follow the tokens nobody verifies, and take the plan of the next one."""
        for value in bits:
            self.controller.observe_token(value)
        self.plan = self.controller.begin_round(room_tokens=1).draft_plan

    def _event(
        self, token: int, entropy_bits: float, source: TokenSource, int4_layers: int, gear: Gear, now_ns: int
    ) -> None:
        piece = self._push(token)
        self.events.append(
            TokenEvent(
                index=len(self.events),
                token=token,
                text=piece,
                entropy_bits=entropy_bits,
                gear=gear,
                source=source,
                round=self.rounds,
                int4_layers=int4_layers,
                time_ns=now_ns - self.tally.start_ns,
            )
        )
        if self._reason is not None:
            self.is_ended = True
            self.tally.end_ns = now_ns

    def _push(self, token: int) -> str:
        """Take a token into the text and see whether it ends it, as a generation of its own does."""
        if token in self._ends:
            self._reason = FinishReason.STOP
            return self.text.flush()
        piece = self.text.push(token)
        if len(self.events) + 1 >= self._limit:
            self._reason = FinishReason.LENGTH
            piece += self.text.flush()
        if self.text.is_stopped:
            self._reason = FinishReason.STOP
        return piece
