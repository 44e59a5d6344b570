"""Decodes the sequences of one batch together: prompts, then rounds until the last one has ended.

    let prompts that wait take the slots of texts that have ended
    launch a round on the device
    book the round before: text, events, records
    read the round, compare, lengthen the texts
    move the sequences together when half of the slots have come free

Sequences in different gears run as one pass each over the same slots, the others left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from edgeprec.config import Mode
from edgeprec.gears import Gear
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_caps import CapPolicy
from edgeprec.runtime.batch_engine import BatchEngine, RoundWork, padded_slots
from edgeprec.runtime.batch_prefill import LEAST_ROWS, catch_up, has_fewer_rows_together, prefill_rows
from edgeprec.runtime.batch_runners import Runner, chosen
from edgeprec.runtime.batch_sequence import BatchSequence, SequenceRound

__all__ = ["BatchDecoder", "BatchRound"]

_CAUGHT_UP = 2  # tokens that the first draft step reads besides


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRound:
    """One pass of a batch: how many sequences and slots it had, its cap, what all of them drafted and emitted."""

    sequences: int
    slots: int
    cap: int
    drafted: int
    accepted: int
    emitted: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A round between its launch and its books."""

    work: RoundWork
    members: list[BatchSequence]
    gears: list[Gear] | None  # of those nobody verifies, whose gear moves on when they are read
    is_caught_up: bool
    first_passes: int  # before it
    found: list[SequenceRound] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    ended_ns: int = 0


@dataclass(slots=True)
class BatchDecoder:
    """Runs sequences in the slots of one engine. ``drafter`` may be the engine itself, None = nobody drafts.

    ``at_once`` of them begin together, and the others join in their order as soon as one has ended; ``begun`` holds
    those that did. ``policy`` None = every sequence drafts as far as its configuration says. ``draft_plan`` is that of
    a draft step. ``first_passes`` counts passes that took more time than the next of their kind will: a round with one
    of them is no measure of what rounds cost. ``is_over`` is asked before every round and may end all that is left,
    which then counts as cancelled.
    """

    engine: BatchEngine
    drafter: BatchEngine | None
    runner: Runner
    sequences: Sequence[BatchSequence]
    draft_plan: Plan | None
    policy: CapPolicy | None
    largest_cap: int
    clock: Callable[[], int]
    mark: Callable[[str], object]
    at_once: int
    first_passes: Callable[[], int] = lambda: 0
    is_over: Callable[[Sequence[BatchSequence]], bool] = lambda sequences: False
    begun: list[BatchSequence] = field(default_factory=list)
    rounds: list[BatchRound] = field(default_factory=list)
    slots: int = 0
    start_ns: int = 0
    decode_ns: int = 0
    joined_ns: int = 0  # that prompts took which joined later
    _waiting: deque[BatchSequence] = field(init=False)
    _read_ns: int = 0
    _unbooked: _Flight | None = None
    _fp16: Plan = field(init=False)
    _has_own_cache: bool = field(init=False)
    _has_foreign_ids: bool = field(init=False)
    _all_adaptive: bool = field(init=False)  # nobody drafts a fixed length

    def __post_init__(self) -> None:
        drafter = self.drafter
        self._fp16 = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        self._has_own_cache = drafter is not None and drafter is not self.engine
        self._has_foreign_ids = drafter is not None and drafter.info.vocab_size < self.engine.info.vocab_size
        self._waiting = deque(self.sequences)
        for sequence in self.sequences:
            sequence.wants_drafts = drafter is not None and sequence.config.mode is Mode.EXACT
        self._all_adaptive = all(sequence.config.drafting.draft_length is None for sequence in self.sequences)

    def run(self) -> None:
        """Decode everything.

        Raises:
            EngineError: a pass failed; the sequences hold all tokens of the rounds before.
        """
        self.start_ns = self.clock()
        for slot in range(min(self.at_once, self.engine.sequences, len(self.sequences))):
            self._begin(slot)
        self.slots = padded_slots(len(self.begun), sequences=self.engine.sequences)
        self.mark("prefill")
        self._prefill(self.begun, slots=self.slots)
        self.mark("decode")
        self.decode_ns = self._read_ns = self.clock()
        try:
            while (active := self._active()) and not self.is_over(self.begun):
                for members, plan in self._groups(active):
                    flight = self._launch(members, plan)
                    self._book_last()
                    self._read(flight)
                    self._unbooked = flight
        finally:
            self._book_last()

    def _begin(self, slot: int) -> BatchSequence:
        sequence = self._waiting.popleft()
        sequence.slot, sequence.tally.start_ns = slot, self.clock()
        self.begun.append(sequence)
        return sequence

    def _active(self) -> list[BatchSequence]:
        """Return who is in the next round: those at work, and those that join now."""
        active = [sequence for sequence in self.begun if not sequence.is_ended]
        if not self._waiting:
            self._compact(active)
            return active
        at_once, start_ns = min(self.at_once, self.engine.sequences), self.clock()
        if len(active) >= at_once:
            return active
        self.mark("prefill")
        while self._waiting and len(active) < at_once:
            active += [joined for joined in self._join(active, at_once - len(active)) if not joined.is_ended]
        self.mark("decode")
        self._read_ns = self.clock()
        self.joined_ns += self._read_ns - start_ns
        return active

    def _join(self, active: list[BatchSequence], room: int) -> list[BatchSequence]:
        """Run the prompts that wait for so many free slots, all of them at once where that takes no more rows.

        Else the first runs in slot 0, alone, so that a pass is as wide as it can be; who was there moves away.
        """
        free = sorted(set(range(self.slots)) - {sequence.slot for sequence in active})
        lengths = [len(sequence.prompt) for sequence in islice(self._waiting, room)]
        if has_fewer_rows_together(self.engine, lengths, slots=self.slots):
            joined = [self._begin(slot) for slot in free[: len(lengths)]]
            self._prefill(joined, slots=self.slots)
            return joined
        first = next((sequence for sequence in active if sequence.slot == 0), None)
        if first is not None:
            self._move(first, free[0])
        sequence = self._begin(0)
        self._prefill([sequence], slots=1)
        return [sequence]

    def _prefill(self, sequences: Sequence[BatchSequence], *, slots: int) -> None:
        by_slot = {sequence.slot: sequence for sequence in sequences}
        texts = [list(by_slot[slot].prompt) if slot in by_slot else [] for slot in range(slots)]
        for step, ended in prefill_rows(self.engine, texts, self._fp16):
            for slot, row in ended.items():
                sequence = by_slot[slot]
                token, entropy_bits = chosen(step, sequence, row, sequence.prompt)
                sequence.begin(token, entropy_bits, self.clock())
        if self._has_own_cache:
            self._prefill_drafter(by_slot, slots)

    def _prefill_drafter(self, by_slot: dict[int, BatchSequence], slots: int) -> None:
        assert self.drafter is not None
        texts: list[list[int]] = [[] for _ in range(slots)]
        for slot, sequence in by_slot.items():
            sequence.can_draft = max(sequence.history) < self.drafter.info.vocab_size
            sequence.draft_cached = len(sequence.prompt) if sequence.can_draft else 0
            if sequence.can_draft and sequence.wants_drafts:
                if self._may_lag(sequence):
                    sequence.draft_cached = 0
                else:
                    texts[slot] = list(sequence.prompt)
        if not any(texts):
            return
        fp16 = Plan.uniform(Precision.FP16, num_layers=self.drafter.info.num_layers)
        catch_up(self.drafter, texts, [0] * slots, fp16)

    def _may_lag(self, sequence: BatchSequence) -> bool:
        """Whether the drafter need not read the prompt now, since the policy may never come to draft for it."""
        is_adaptive = sequence.config.drafting.draft_length is None
        return is_adaptive and self.policy is not None and not self.policy.keeps_up(self.slots)

    def _compact(self, active: list[BatchSequence]) -> None:
        """Move sequences into the lowest slots once fewer are padded to."""
        slots = padded_slots(len(active), sequences=self.engine.sequences)
        if slots >= self.slots:
            return
        free = sorted(set(range(slots)) - {sequence.slot for sequence in active})
        for sequence in active:
            if sequence.slot >= slots:
                self._move(sequence, free.pop(0))
        self.slots = slots

    def _move(self, sequence: BatchSequence, to: int) -> None:
        self.engine.move_sequence(sequence.slot, to, tokens=len(sequence.history))
        if self._has_own_cache and self.drafter is not None:
            self.drafter.move_sequence(sequence.slot, to, tokens=len(sequence.history))
        sequence.slot = to

    def _groups(self, active: list[BatchSequence]) -> list[tuple[list[BatchSequence], Plan]]:
        """Return who runs together: all that are verified, and those that are not by their plan."""
        verified = [sequence for sequence in active if sequence.is_verified]
        groups: dict[Plan, list[BatchSequence]] = {}
        for sequence in active if len(verified) < len(active) else ():
            if not sequence.is_verified and sequence.plan is not None:
                groups.setdefault(sequence.plan, []).append(sequence)
        together = [(verified, self._fp16)] if verified else []
        return together + [(members, plan) for plan, members in groups.items()]

    def _launch(self, members: list[BatchSequence], plan: Plan) -> _Flight:
        first_passes, drafts = self.first_passes(), self._drafts(members)
        cap = max(drafts)
        is_caught_up = True
        if cap and self._has_own_cache:
            is_caught_up = self._catch_up([m for m, count in zip(members, drafts, strict=True) if count])
        work = self._work(members, drafts, plan)
        flight = _Flight(
            work=work,
            members=members,
            gears=None if members[0].is_verified else [member.gear for member in members],
            is_caught_up=is_caught_up,
            first_passes=first_passes,
        )
        self.runner.launch(work, members)
        return flight

    def _drafts(self, members: list[BatchSequence]) -> list[int]:
        """Return how many tokens each sequence drafts, as the policy and its room have it."""
        if self.drafter is None or not members[0].is_verified:
            return [0] * len(members)
        if self._all_adaptive and self.policy is not None and self.policy.rests(self.slots):
            return [0] * len(members)
        drafting_now = [member for member in members if member.wants_drafts and member.can_draft]
        adaptive = [member.index for member in drafting_now if member.config.drafting.draft_length is None]
        shared = _longest_fixed(drafting_now)  # the round has those rows anyway: who may choose drafts along
        if self.policy is not None and adaptive and not shared:
            near = self._near(drafting_now)
            behind = max(len(member.history) - member.draft_cached for member in drafting_now)
            shared = self.policy.cap(
                self.slots,
                adaptive,
                others=len(members) - len(adaptive),
                behind=behind if self._has_own_cache else 0,
                is_near=bool(near),
            )
            if self.policy.is_trial and near:
                drafting_now = near
        may_draft = {member.index for member in drafting_now}
        counts = []
        for member in members:
            drafting = member.config.drafting
            wanted = drafting.draft_length
            if wanted is None:
                wanted = min(shared, drafting.max_draft_length)
            counts.append(min(wanted, self.largest_cap, member.room_tokens - 1) if member.index in may_draft else 0)
        return counts

    def _near(self, members: list[BatchSequence]) -> list[BatchSequence]:
        """Return whose text the drafter need not catch up with or, where there is none, can in a single pass."""
        if not self._has_own_cache:
            return members
        lacks = [len(member.history) - member.draft_cached for member in members]
        assert self.drafter is not None
        a_pass = min(LEAST_ROWS, self.drafter.info.max_rows // self.slots)
        most = _CAUGHT_UP if min(lacks, default=0) <= _CAUGHT_UP else max(1 + a_pass, _CAUGHT_UP)
        return [member for member, lack in zip(members, lacks, strict=True) if lack <= most]

    def _catch_up(self, members: list[BatchSequence]) -> bool:
        """Bring the drafter's cache to two tokens behind each text or nearer; return whether it was there before."""
        assert self.drafter is not None
        assert self.draft_plan is not None
        behind = [member for member in members if len(member.history) - member.draft_cached > _CAUGHT_UP]
        if not behind:
            return True
        texts: list[list[int]] = [[] for _ in range(self.slots)]
        cached = [0] * self.slots
        for member in behind:
            texts[member.slot], cached[member.slot] = member.history[:-1], member.draft_cached
            member.draft_cached = len(member.history) - 1
        catch_up(self.drafter, texts, cached, self.draft_plan)
        return False

    def _work(self, members: list[BatchSequence], drafts: list[int], plan: Plan) -> RoundWork:
        lacks = [len(m.history) - m.draft_cached for m, count in zip(members, drafts, strict=True) if count]
        reach = 2 if self._has_own_cache and max(lacks, default=1) > 1 else 1
        first = [[0] * reach] * self.slots
        lengths, counts = [1] * self.slots, [-1] * self.slots
        for member, count in zip(members, drafts, strict=True):
            slot, history = member.slot, member.history
            first[slot], lengths[slot], counts[slot] = history[-reach:], len(history), count
        cap = max(drafts)
        return RoundWork(
            first=np.array(first, np.int32),
            lengths=np.array(lengths, np.int32),
            drafts=np.array(counts, np.int32),
            cap=cap,
            draft_plan=self.draft_plan if cap else None,
            plan=plan,
        )

    def _read(self, flight: _Flight) -> None:
        """Lengthen the texts by what the round gave; everything else can wait."""
        flight.found = self.runner.read()
        now_ns = self.clock()
        for member, found in zip(flight.members, flight.found, strict=True):
            before = len(member.history)
            flight.taken.append(0 if member.is_ended else member.accept(found.tokens, found.bits))
            if found.drafted:
                member.draft_cached = before + min(len(found.drafted) - 1, found.accepted)
            if self._has_foreign_ids and self.drafter is not None:
                member.can_draft = member.can_draft and max(found.tokens) < self.drafter.info.vocab_size
        seconds = (now_ns - self._read_ns) * 1e-9
        self._read_ns = flight.ended_ns = now_ns
        if self.policy is not None and flight.gears is None:
            is_chosen = self._all_adaptive or not _longest_fixed(flight.members)
            is_timed = is_chosen and flight.first_passes == self.first_passes() and bool(self.rounds)
            outcomes = [
                (member.index, len(found.drafted), found.accepted)
                for member, found in zip(flight.members, flight.found, strict=True)
                if flight.work.cap
            ]
            self.policy.observe(
                flight.work.slots,
                flight.work.cap,
                seconds if is_timed else None,
                outcomes,
                is_caught_up=flight.is_caught_up,
            )
        self.rounds.append(
            BatchRound(
                sequences=len(flight.members),
                slots=flight.work.slots,
                cap=flight.work.cap,
                drafted=sum(len(found.drafted) for found in flight.found),
                accepted=sum(found.accepted for found in flight.found),
                emitted=sum(flight.taken),
                seconds=seconds,
            )
        )

    def _book_last(self) -> None:
        """Write down what the round before gave, while the next one runs."""
        last, self._unbooked = self._unbooked, None
        if last is not None:
            self._book(last)

    def _book(self, flight: _Flight) -> None:
        work, reach = flight.work, flight.work.first.shape[1]
        draft_layers = 0 if self.draft_plan is None else sum(self.draft_plan.gates[:-1])
        int4_layers = draft_layers if flight.gears is None else sum(work.plan.gates[:-1])
        for place, (member, found) in enumerate(zip(flight.members, flight.found, strict=True)):
            taken, drafted = flight.taken[place], len(found.drafted)
            if not taken:
                continue
            member.passes[work.plan, drafted + 1, False] += 1
            if drafted and work.draft_plan is not None:
                member.passes[work.draft_plan, reach, True] += 1
                member.passes[work.draft_plan, 1, True] += drafted - 1
            gear = member.gear if flight.gears is None else flight.gears[place]
            member.book(found, taken, gear=gear, int4_layers=int4_layers, now_ns=flight.ended_ns)


def _longest_fixed(members: Sequence[BatchSequence]) -> int:
    """Return the longest draft that does not adapt, 0 where all do."""
    wanting = (member.config.drafting for member in members if member.wants_drafts and member.can_draft)
    return max((drafting.draft_length or 0 for drafting in wanting), default=0)
