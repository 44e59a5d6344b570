"""What every weight file offers, whatever its format: names, shapes, and rows as float16 or float32."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "TensorSource"]

FloatArray = npt.NDArray[np.float16] | npt.NDArray[np.float32]
"""Values as stored (float16), or widened without loss (bf16) or dequantized to float32."""


class TensorSource(Protocol):
    """Tensors by name. Shapes are [out, in] for matrices; nothing is kept in memory between calls."""

    @property
    def origin(self) -> str:
        """Return what messages call the whole: a folder or a file."""
        ...

    @property
    def names(self) -> Set[str]:
        """Return the names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop`` of the first axis.

        Raises:
            ConfigError: the data cannot be read or is of a type that is not supported.
        """
        ...
