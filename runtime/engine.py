"""What every inference engine offers: one forward pass over a few rows with a plan; the KV cache lies inside.

An engine keeps no position of its own. A pass at ``position`` writes KV slots position .. position + T - 1 and reads
slots 0 .. position + T - 1. Rolling back is passing a smaller position: stale slots are overwritten before they are
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgeprec.precision import Plan

__all__ = ["Engine", "EngineInfo", "StepResult"]


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


@dataclass(frozen=True, slots=True)
class StepResult:
    """Logits of every row of one pass. The array is valid until the engine's next pass."""

    logits: npt.NDArray[np.float32]  # [T, V]


class Engine(Protocol):
    """One model, its two variants and its KV cache."""

    @property
    def info(self) -> EngineInfo:
        """Return shapes and limits."""
        ...

    def forward(self, tokens: Sequence[int], *, position: int, plan: Plan) -> StepResult:
        """Run ``tokens`` [T], 1 <= T <= max_rows, at ``position`` with ``plan``.

        Raises:
            EngineError: the pass failed, or rows or positions are out of range.
        """
        ...

    def close(self) -> None:
        """Free the session and the cache; calling it twice is harmless."""
        ...
