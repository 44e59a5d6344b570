"""What every inference engine offers: one forward pass over a few rows with a plan; the KV cache lies inside.

Some also draft several tokens without the host in between (``DraftingEngine``).

An engine keeps no position of its own. A pass at ``position`` writes KV slots position .. position + T - 1 and reads
slots 0 .. position + T - 1. Rolling back is passing a smaller position: stale slots are overwritten before they are
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgeprec.entropy import row_statistics
from edgeprec.precision import Plan

__all__ = [
    "NEAR_TIES",
    "DraftingEngine",
    "Engine",
    "EngineInfo",
    "RowFacts",
    "SettlingEngine",
    "Step",
    "StepResult",
    "first_pass_counter",
]


NEAR_TIES = (
    "exact may differ from fp16 at a near tie here: it is not known that a row's bits do not depend on the rows beside "
    "it; edgeprec certify compares the two"
)
"""The fallback of an engine whose ``has_bitwise_rows`` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a session needs to know of an engine. ``fallbacks`` says in words what could not run as asked."""

    name: str  # "onnxruntime", "torch", "tensorrt"
    device: str  # "cpu", "cuda:0"
    num_layers: int
    vocab_size: int
    context_tokens: int
    max_rows: int
    memory_bytes: int
    has_bitwise_rows: bool  # logits of a token do not depend on the rows that run with it
    fallbacks: tuple[str, ...] = ()


class RowFacts(NamedTuple):
    """What greedy decoding and the policy need of a row of logits; see ``edgeprec.entropy``."""

    argmax: int
    entropy_bits: float
    margin: float


class Step(Protocol):
    """What one pass gave, row by row; valid until the engine's next pass."""

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Return the logits [T, V]; an engine on another device fetches them when they are asked for."""
        ...

    def facts(self, row: int) -> RowFacts:
        """Return argmax, entropy and margin of one row, which need no logits on the host.

        Raises:
            EngineError: the row holds NaN, or nothing above -inf.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """Logits of every row of one pass, in the host's memory."""

    logits: npt.NDArray[np.float32]  # [T, V]

    def facts(self, row: int) -> RowFacts:
        """Return argmax, entropy and margin of one row; see the protocol."""
        statistics = row_statistics(self.logits[row][None, :])
        return RowFacts(int(statistics.argmax[0]), float(statistics.entropy_bits[0]), float(statistics.margin[0]))


class Engine(Protocol):
    """One model, its two variants and its KV cache."""

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        ...

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> Step:
        """Run ``tokens`` [T], 1 <= T <= max_rows, at ``position`` with ``plan``.

        Raises:
            EngineError: the pass failed, or rows or positions are out of range.
        """
        ...

    def close(self) -> None:
        """Free the session and the cache; calling it twice is harmless."""
        ...


@runtime_checkable
class SettlingEngine(Engine, Protocol):
    """An engine whose first pass of a kind takes longer than the next: it compiles or captures."""

    @property
    def first_passes(self) -> int:
        """Return how many such passes there were so far."""
        ...


def first_pass_counter(*engines: Engine | None) -> Callable[[], int]:
    """Return what counts the passes of all these engines that took longer than the next of their kind will.

    It is asked twice a round, and whether an engine settles is dear to find out: that is done once.
    """
    settling = [engine for engine in engines if isinstance(engine, SettlingEngine)]
    return lambda: sum(engine.first_passes for engine in settling)


@runtime_checkable
class DraftingEngine(Engine, Protocol):
    """An engine that takes its own greedy tokens as input, several steps in one go."""

    @property
    def max_draft_tokens(self) -> int:
        """Return how many tokens one call of ``draft`` may ask for."""
        ...

    def draft(
        self, tokens: Sequence[int], *, position: int, plan: Plan, count: int, vocabulary: int
    ) -> Sequence[RowFacts]:
        """Run ``tokens`` [T] at ``position``, then each greedy token in turn, and return ``count`` of them.

        Ids from ``vocabulary`` on are never chosen and have no mass. The last token returned is not in the cache.

        Raises:
            EngineError: the pass failed, or rows, positions or ``count`` are out of range.
        """
        ...
