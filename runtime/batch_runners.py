"""How a batch's round is run: whole on the device where the largest logit decides, or step by step with samplers.

Both give the same texts. A sampler keyed to positions needs logits on the host, and so does an engine without rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgeprec.runtime.batch_engine import BatchEngine, BatchRounds, RoundWork
from edgeprec.runtime.batch_sequence import BatchSequence, SequenceRound
from edgeprec.runtime.engine import StepResult

__all__ = ["FusedRunner", "Runner", "SteppedRunner", "chosen"]


class Runner(Protocol):
    """Runs one round at a time."""

    def launch(self, work: RoundWork, members: Sequence[BatchSequence]) -> None:
        """Begin a round of these sequences."""
        ...

    def read(self) -> list[SequenceRound]:
        """Return what it gave, in the order of the members.

        Raises:
            EngineError: the round failed.
        """
        ...


@dataclass(slots=True)
class FusedRunner:
    """Rounds on the device. While one runs, the host is free."""

    rounds: BatchRounds
    _work: RoundWork | None = None
    _slots: list[int] = field(default_factory=list)

    def launch(self, work: RoundWork, members: Sequence[BatchSequence]) -> None:
        """Start the round and return at once."""
        self._work, self._slots = work, [member.slot for member in members]
        self.rounds.launch(work)

    def read(self) -> list[SequenceRound]:
        """Wait for the round and compare drafts with FP16's tokens."""
        facts, work = self.rounds.read(), self._work
        assert work is not None
        if not work.cap:
            tokens, bits = facts.tokens[:, 0].tolist(), facts.entropy_bits[:, 0].tolist()
            return [SequenceRound([], [], [tokens[slot]], [bits[slot]], 0) for slot in self._slots]
        is_right = (facts.drafted == facts.tokens[:, : work.cap]) & (np.arange(work.cap) < work.drafts[:, None])
        accepted = is_right.cumprod(axis=1).sum(axis=1).tolist()
        drafted, draft_bits = facts.drafted.tolist(), facts.draft_entropy_bits.tolist()
        rows, row_bits, counts = facts.tokens.tolist(), facts.entropy_bits.tolist(), work.drafts.tolist()
        found = []
        for slot in self._slots:
            count, end = counts[slot], accepted[slot] + 1
            found.append(
                SequenceRound(
                    drafted[slot][:count], draft_bits[slot][:count], rows[slot][:end], row_bits[slot][:end], end - 1
                )
            )
        return found


@dataclass(slots=True)
class SteppedRunner:
    """Rounds of single passes, each token chosen on the host by its sequence's sampler."""

    engine: BatchEngine
    drafter: BatchEngine | None
    shared_tokens: int
    _work: RoundWork | None = None
    _members: list[BatchSequence] = field(default_factory=list)

    def launch(self, work: RoundWork, members: Sequence[BatchSequence]) -> None:
        """Remember what ``read`` is to run."""
        self._work, self._members = work, list(members)

    def read(self) -> list[SequenceRound]:
        """Draft, verify and choose."""
        work = self._work
        assert work is not None
        drafts: dict[int, list[int]] = {member.slot: [] for member in self._members}
        bits: dict[int, list[float | None]] = {member.slot: [] for member in self._members}
        for step in range(work.cap):
            self._draft_step(work, step, drafts, bits)
        rows: list[list[int]] = [[] for _ in range(work.slots)]
        for member in self._members:
            rows[member.slot] = [member.history[-1], *drafts[member.slot]]
        batch = self.engine.forward_batch(rows, positions=_positions(work, rows, 0), plan=work.plan)
        return [self._verified(batch, member, drafts[member.slot], bits[member.slot]) for member in self._members]

    def _draft_step(
        self, work: RoundWork, step: int, drafts: dict[int, list[int]], bits: dict[int, list[float | None]]
    ) -> None:
        assert self.drafter is not None
        assert work.draft_plan is not None
        reach = work.first.shape[1]
        rows: list[list[int]] = [[] for _ in range(work.slots)]
        at_work = [member for member in self._members if work.drafts[member.slot] > step]
        for member in at_work:
            slot = member.slot
            rows[slot] = [drafts[slot][-1]] if step else work.first[slot].tolist()
        back = 0 if step else reach - 1
        batch = self.drafter.forward_batch(rows, positions=_positions(work, rows, step - back), plan=work.draft_plan)
        logits = batch.step.logits
        for member in at_work:
            row = logits[member.slot * batch.rows_per_sequence + len(rows[member.slot]) - 1][: self.shared_tokens]
            text = [*member.history, *drafts[member.slot]]
            facts = StepResult(row.reshape(1, -1)).facts(0)
            wide = _widened(row, member.sampler.vocab_size)
            token = member.sampler.choose(wide, position=len(text), history=text, argmax=facts.argmax)
            drafts[member.slot].append(token)
            bits[member.slot].append(facts.entropy_bits)

    def _verified(
        self, batch: Any, member: BatchSequence, drafted: list[int], draft_bits: list[float | None]
    ) -> SequenceRound:
        text, tokens, bits = list(member.history), [], []
        for place in range(len(drafted) + 1):
            token, entropy_bits = chosen(batch, member, place, text)
            tokens.append(token)
            bits.append(entropy_bits)
            text.append(token)
            if place == len(drafted) or token != drafted[place]:
                break
        return SequenceRound(drafted, draft_bits, tokens, bits, len(tokens) - 1)


def chosen(batch: Any, member: BatchSequence, place: int, text: Sequence[int]) -> tuple[int, float]:
    """Return the token after ``text`` and the entropy of its row, row ``place`` of the sequence in a ``BatchStep``."""
    row = member.slot * batch.rows_per_sequence + place
    facts = batch.step.facts(row)
    if member.sampler.takes_argmax:
        return facts.argmax, facts.entropy_bits
    return member.sampler.choose(batch.step.logits[row], position=len(text), history=text), facts.entropy_bits


def _positions(work: RoundWork, rows: Sequence[Sequence[int]], step: int) -> list[int]:
    """Return where each slot's rows begin, ``step`` tokens after its last one; a slot without rows has 0."""
    return [max(int(length) - 1 + step, 0) if row else 0 for length, row in zip(work.lengths, rows, strict=True)]


def _widened(row: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """Return a row as wide as the target's, without mass on ids that are not shared."""
    if len(row) == width:
        return row
    wide = np.full(width, -np.inf, np.float32)
    wide[: len(row)] = row
    return wide
