"""Keys and values of the CPU engine: no longer than the text needs, since attention reads all of what is bound.

ONNX Runtime's standard attention (in graphs whose heads its own operator does not take) computes on a CPU over the
whole length of the bound cache and masks the rest, so its time follows the room, not the text: at a context of 2,048 it
took as long as all INT4 products of a small model. Logits are the same bits in a cache of any length
(docs/lab-notes.md); it grows by steps, and shrinks when a much shorter text begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig

__all__ = ["GrowingCache", "cache_steps"]

_FIRST_TOKENS = 128
_SHRINK_BELOW = 4  # so many times too long


def cache_steps(longest: int) -> list[int]:
    """Return the lengths a cache may have: 128, 192, 256, 384, 512, ... and the longest."""
    steps, length = [], _FIRST_TOKENS
    while length < longest:
        steps += [length, length * 3 // 2]
        length *= 2
    return [*(step for step in steps if step < longest), longest]


class GrowingCache:
    """Arrays [1, heads, tokens, head_dim] of every layer in float32, and what a session binds of them."""

    def __init__(
        self, config: ModelConfig, *, longest: int, bindable: Callable[[npt.NDArray[np.float32]], Any]
    ) -> None:
        self._steps = cache_steps(longest)
        self._bindable = bindable
        names = [f"{part}_{layer}" for layer in range(config.num_layers) for part in ("key", "value")]
        shape = (1, config.num_kv_heads, self._steps[0], config.head_dim)
        self._arrays = {name: np.zeros(shape, np.float32) for name in names}
        self._values = self._bound()
        self.tokens = self._steps[0]

    @property
    def values(self) -> Mapping[str, Any]:
        """Return what is bound, by name such as ``key_0``; others after ``fit`` returned True."""
        return self._values

    def fit(self, needed: int) -> bool:
        """Make room for the first ``needed`` tokens and return whether what is bound has changed.

        Of what is kept, everything that fits is kept: the pass to come needs no more.
        """
        wanted = next(step for step in self._steps if step >= needed)
        if self.tokens // _SHRINK_BELOW < wanted <= self.tokens:
            return False
        kept = min(self.tokens, wanted)
        for name, old in self._arrays.items():
            new = np.zeros((*old.shape[:2], wanted, old.shape[3]), np.float32)
            new[:, :, :kept] = old[:, :, :kept]
            self._arrays[name] = new
        self.tokens, self._values = wanted, self._bound()
        return True

    def clear(self) -> None:
        """Let go of everything."""
        self._values = {}
        self._arrays.clear()

    def _bound(self) -> dict[str, Any]:
        return {name: self._bindable(array) for name, array in self._arrays.items()}
