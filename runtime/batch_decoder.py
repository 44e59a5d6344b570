"""Decodes the sequences of one batch together: prompts, then rounds until the last one has ended.

    launch a round on the device
    book the round before: text, events, records
    read the round, compare, lengthen the texts
    move the sequences together when half of the slots have come free

Sequences in different gears run as one pass each over the same slots, the others left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeprec.config import Mode
from edgeprec.gears import Gear
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_caps import CapPolicy
from edgeprec.runtime.batch_engine import BatchEngine, RoundWork, padded_slots
from edgeprec.runtime.batch_prefill import catch_up, prefill_rows
from edgeprec.runtime.batch_runners import Runner, chosen
from edgeprec.runtime.batch_sequence import BatchSequence, SequenceRound
from edgeprec.runtime.reply import RoundRecord

__all__ = ["BatchDecoder", "BatchRound"]


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
    slots: list[int]
    gears: list[tuple[Gear, float | None]]  # of those nobody verifies, whose gear moves on when they are read
    is_timed: bool
    began_ns: int
    found: list[SequenceRound] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    ended_ns: int = 0


@dataclass(slots=True)
class BatchDecoder:
    """Runs sequences in the slots of one engine. ``drafter`` may be the engine itself, None = nobody drafts.

    ``policy`` None = every sequence drafts as far as its configuration says. ``draft_plan`` is that of a draft step.
    ``is_over`` is asked before every round and may end all that is left, which then counts as cancelled.
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
    is_over: Callable[[Sequence[BatchSequence]], bool] = lambda sequences: False
    rounds: list[BatchRound] = field(default_factory=list)
    slots: int = 0
    start_ns: int = 0
    decode_ns: int = 0
    _read_ns: int = 0

    def run(self) -> None:
        """Decode everything.

        Raises:
            EngineError: a pass failed; the sequences hold what there was until then.
        """
        self.start_ns = self.clock()
        for slot, sequence in enumerate(self.sequences):
            sequence.slot = slot
            sequence.tally.start_ns = self.start_ns
        self.slots = padded_slots(len(self.sequences), sequences=self.engine.sequences)
        self.mark("prefill")
        self._prefill()
        self.mark("decode")
        self.decode_ns = self._read_ns = self.clock()
        last: _Flight | None = None
        while self._active and not self.is_over(self.sequences):
            self._compact()
            for members, plan in self._groups():
                flight = self._launch(members, plan)
                if last is not None:
                    self._book(last)
                self._read(flight)
                last = flight
        if last is not None:
            self._book(last)

    @property
    def _active(self) -> list[BatchSequence]:
        return [sequence for sequence in self.sequences if not sequence.is_ended]

    @property
    def _has_own_cache(self) -> bool:
        return self.drafter is not None and self.drafter is not self.engine

    def _prefill(self) -> None:
        fp16 = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        texts = self._by_slot([list(sequence.prompt) for sequence in self.sequences])
        for step, ended in prefill_rows(self.engine, texts, fp16):
            for slot, row in ended.items():
                sequence = self.sequences[slot]
                token, entropy_bits = chosen(step, sequence, row, sequence.prompt)
                sequence.begin(token, entropy_bits, self.clock())
        if self._has_own_cache:
            self._prefill_drafter()

    def _prefill_drafter(self) -> None:
        assert self.drafter is not None
        for sequence in self.sequences:
            sequence.can_draft = max(sequence.history) < self.drafter.info.vocab_size
            sequence.draft_cached = len(sequence.prompt) if sequence.can_draft else 0
        fp16 = Plan.uniform(Precision.FP16, num_layers=self.drafter.info.num_layers)
        texts = self._by_slot([list(s.prompt) if s.can_draft and self._wants(s) else [] for s in self.sequences])
        catch_up(self.drafter, texts, [0] * len(texts), fp16)

    def _by_slot(self, texts: list[list[int]]) -> list[list[int]]:
        return texts + [[] for _ in range(self.slots - len(texts))]

    def _wants(self, sequence: BatchSequence) -> bool:
        """Whether a sequence may ever draft."""
        return self.drafter is not None and sequence.config.mode is Mode.EXACT

    def _compact(self) -> None:
        """Move sequences into the lowest slots once fewer are padded to."""
        active = self._active
        slots = padded_slots(len(active), sequences=self.engine.sequences)
        if slots >= self.slots:
            return
        free = sorted(set(range(slots)) - {sequence.slot for sequence in active})
        for sequence in active:
            if sequence.slot >= slots:
                to = free.pop(0)
                self.engine.move_sequence(sequence.slot, to, tokens=len(sequence.history))
                if self._has_own_cache and self.drafter is not None:
                    self.drafter.move_sequence(sequence.slot, to, tokens=len(sequence.history))
                sequence.slot = to
        self.slots = slots

    def _groups(self) -> list[tuple[list[BatchSequence], Plan]]:
        """Return who runs together: all that are verified, and those that are not by their plan."""
        fp16 = Plan.uniform(Precision.FP16, num_layers=self.engine.info.num_layers)
        groups: dict[tuple[bool, Plan], list[BatchSequence]] = {}
        for sequence in self._active:
            plan = fp16 if sequence.is_verified or sequence.plan is None else sequence.plan
            groups.setdefault((sequence.is_verified, plan), []).append(sequence)
        return [(members, plan) for (_, plan), members in groups.items()]

    def _launch(self, members: list[BatchSequence], plan: Plan) -> _Flight:
        drafts = self._drafts(members)
        cap = max(drafts)
        is_caught_up = True
        if cap and self._has_own_cache:
            is_caught_up = self._catch_up([m for m, count in zip(members, drafts, strict=True) if count])
        work = self._work(members, drafts, plan)
        flight = _Flight(
            work=work,
            members=members,
            slots=[member.slot for member in members],
            gears=[(member.gear, member.smoothed_bits) for member in members],
            is_timed=is_caught_up and self.runner.is_ready(work),
            began_ns=self._read_ns,
        )
        self.runner.launch(work, members)
        return flight

    def _drafts(self, members: list[BatchSequence]) -> list[int]:
        """Return how many tokens each sequence drafts, as the policy and its room have it."""
        adaptive = [m.index for m in members if self._wants(m) and m.config.drafting.draft_length is None]
        shared = self.policy.cap(self.slots, adaptive) if self.policy is not None and adaptive else 0
        counts = []
        for member in members:
            fixed = member.config.drafting.draft_length
            wanted = 0 if not (self._wants(member) and member.can_draft) else shared if fixed is None else fixed
            counts.append(max(min(wanted, self.largest_cap, member.room_tokens - 1), 0))
        return counts

    def _catch_up(self, members: list[BatchSequence]) -> bool:
        """Bring the drafter's cache to two tokens behind each text or nearer; return whether it was there before."""
        assert self.drafter is not None
        assert self.draft_plan is not None
        behind = [member for member in members if len(member.history) - member.draft_cached > 2]
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
        first = np.zeros((self.slots, reach), np.int32)
        lengths, counts = np.ones(self.slots, np.int32), np.full(self.slots, -1, np.int32)
        for member, count in zip(members, drafts, strict=True):
            first[member.slot] = member.history[-reach:]
            lengths[member.slot], counts[member.slot] = len(member.history), count
        cap = max(drafts)
        return RoundWork(
            first=first, lengths=lengths, drafts=counts, cap=cap, draft_plan=self.draft_plan if cap else None, plan=plan
        )

    def _read(self, flight: _Flight) -> None:
        """Lengthen the texts by what the round gave; everything else can wait."""
        flight.found = self.runner.read()
        now_ns = self.clock()
        outcomes = []
        for member, found in zip(flight.members, flight.found, strict=True):
            before = len(member.history)
            flight.taken.append(0 if member.is_ended else member.accept(found.tokens, found.bits))
            if found.drafted:
                member.draft_cached = before + min(len(found.drafted) - 1, found.accepted)
            if self._has_own_cache and self.drafter is not None:
                member.can_draft = member.can_draft and max(found.tokens) < self.drafter.info.vocab_size
            outcomes.append((member.index, len(found.drafted), found.accepted))
        seconds = (now_ns - self._read_ns) * 1e-9
        self._read_ns = flight.ended_ns = now_ns
        if self.policy is not None and flight.work.plan.is_fp16:
            is_timed = flight.is_timed and bool(self.rounds)
            self.policy.observe(flight.work.slots, flight.work.cap, seconds if is_timed else None, outcomes)
        self.rounds.append(
            BatchRound(
                sequences=len(flight.members),
                slots=flight.work.slots,
                cap=flight.work.cap,
                drafted=sum(drafted for _, drafted, _ in outcomes),
                accepted=sum(accepted for _, _, accepted in outcomes),
                emitted=sum(flight.taken),
                seconds=seconds,
            )
        )

    def _book(self, flight: _Flight) -> None:
        """Write down what a round gave, while the next one runs."""
        work = flight.work
        for place, (member, found) in enumerate(zip(flight.members, flight.found, strict=True)):
            if not flight.taken[place]:
                continue
            member.tally.target.add(work.plan, rows=len(found.drafted) + 1)
            for step in range(len(found.drafted)):
                assert work.draft_plan is not None
                member.tally.draft.add(work.draft_plan, rows=1 if step else work.first.shape[1])
            member.book(found, flight.taken[place], self._record(flight, place), flight.ended_ns)

    def _record(self, flight: _Flight, place: int) -> RoundRecord:
        """Return a sequence's record; of a round in a batch the host knows the whole time, which is ``verify_ns``."""
        member, found, work = flight.members[place], flight.found[place], flight.work
        gear, smoothed = (member.gear, member.smoothed_bits) if member.is_verified else flight.gears[place]
        plan = work.plan.gates
        if member.is_verified:
            plan = () if self.draft_plan is None or not self._wants(member) else self.draft_plan.gates
        count = int(work.drafts[flight.slots[place]])
        return RoundRecord(
            round=len(member.tally.rounds) + 1,
            position=int(work.lengths[flight.slots[place]]) - 1,
            drafted=tuple(found.drafted),
            draft_entropy_bits=tuple(found.draft_bits),
            accepted=found.accepted,
            emitted=len(found.tokens),
            verified_rows=count + 1 if member.is_verified else 0,
            draft_cap=count,
            stop_reason="cap" if count else "none",
            smoothed_entropy_bits=smoothed,
            gear=gear,
            draft_plan=plan,
            draft_ns=0,
            verify_ns=flight.ended_ns - flight.began_ns,
            start_ns=flight.began_ns - self.start_ns,
        )
