"""What decoding several texts at once needs of an engine beyond single passes: slots in the cache, and whole rounds.

A round drafts for every sequence and verifies all of it; the host hears of it once, at its end. ``RoundWork`` is what
goes in, ``RoundFacts`` what comes out. P is how many slots a pass runs, those at work and those in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgeprec.precision import Plan
from edgeprec.runtime.engine import Engine, Step

__all__ = ["MAX_BATCH_DRAFT", "BatchEngine", "BatchRounds", "BatchStep", "RoundFacts", "RoundWork", "padded_slots"]

MAX_BATCH_DRAFT = 7  # tokens a sequence may draft in a round: a pass has eight rows a sequence

Ids = npt.NDArray[np.int32]
Bits = npt.NDArray[np.float32]


def padded_slots(active: int, *, sequences: int) -> int:
    """Return how many slots a pass over so many sequences runs: a power of two, or all. That keeps graphs few."""
    return min(1 << max(active - 1, 0).bit_length(), sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """One round of every slot from 0 on. ``drafts`` -1 leaves a slot out; no other is above ``cap``.

    ``first`` are the last R tokens of each text, which the drafter reads before it drafts: 2 where its cache may lack
    one, and then every text has two. ``cap`` 0 drafts nothing, and ``draft_plan`` is None.
    """

    first: Ids  # [P, R]
    lengths: Ids  # [P], tokens of each text
    drafts: Ids  # [P]
    cap: int
    draft_plan: Plan | None
    plan: Plan

    @property
    def slots(self) -> int:
        """Return P."""
        return int(self.first.shape[0])

    @property
    def longest(self) -> int:
        """Return the most tokens any row sees."""
        at_work = self.drafts >= 0
        return int((self.lengths + self.drafts)[at_work].max()) if at_work.any() else 1

    def draft_positions(self) -> list[Ids]:
        """Return the positions of each step's rows, [P, R] and then [P]; -1 = not there."""
        reach = np.arange(1 - self.first.shape[1], 1, dtype=np.int32)
        begin = (self.lengths - 1).astype(np.int32)
        steps = [np.where((self.drafts > 0)[:, None], begin[:, None] + reach, -1).astype(np.int32)]
        steps += [np.where(self.drafts > step, begin + step, -1).astype(np.int32) for step in range(1, self.cap)]
        return steps

    def positions(self) -> Ids:
        """Return the positions of the verified rows [P, cap + 1]; -1 = not there."""
        row = np.arange(self.cap + 1, dtype=np.int32)
        at = (self.lengths - 1)[:, None] + row
        return np.where(row <= self.drafts[:, None], at, -1).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What a round gave. Numbers of rows that were not there mean nothing."""

    drafted: Ids  # [P, K]
    draft_entropy_bits: Bits  # [P, K]
    draft_margins: Bits  # [P, K]
    tokens: Ids  # [P, K + 1], the largest logit after each verified row
    entropy_bits: Bits  # [P, K + 1]


class BatchRounds(Protocol):
    """Runs greedy rounds on the device, one launch and one read each."""

    def launch(self, work: RoundWork) -> None:
        """Begin a round; the one before has been read."""
        ...

    def read(self) -> RoundFacts:
        """Wait for the round and return what it gave.

        Raises:
            EngineError: it failed, or a row of logits holds NaN.
        """
        ...


class BatchStep(Protocol):
    """A pass over several sequences; row t of sequence b is row ``b * rows_per_sequence + t`` of ``step``."""

    @property
    def step(self) -> Step:
        """Return the pass."""
        ...

    @property
    def rows_per_sequence(self) -> int:
        """Return how far apart the sequences lie."""
        ...


@runtime_checkable
class BatchEngine(Engine, Protocol):
    """An engine whose cache has several slots."""

    @property
    def sequences(self) -> int:
        """Return how many texts the cache holds."""
        ...

    def forward_batch(
        self, tokens: Sequence[Sequence[int]], *, positions: Sequence[int], plan: Plan, width: int = 0
    ) -> Any:
        """Run tokens [B][T_b] of slots 0 .. B - 1 and return a ``BatchStep``; a T_b of 0 leaves a slot out.

        The pass has ``width`` rows a slot or more, those that are not there included: so kinds of passes stay few.

        Raises:
            EngineError: the pass failed, or sequences, rows, ids or positions are out of range.
        """
        ...

    def move_sequence(self, source: int, to: int, *, tokens: int) -> None:
        """Copy the cache of the first ``tokens`` tokens from one slot to another."""
        ...

    def open_rounds(self, drafter: Engine | None, *, vocabulary: int) -> BatchRounds | None:
        """Return what runs whole rounds, None where this engine cannot; ``drafter`` may be this engine itself.

        Only ids below ``vocabulary`` are drafted.
        """
        ...
