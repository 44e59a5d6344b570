"""The name, element type and shape of one stored tensor; no values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

__all__ = ["TensorPlacement", "TensorSpec", "TensorType"]


class TensorType(StrEnum):
    """The element types a bundle holds, as safetensors writes them."""

    F32 = "F32"
    F16 = "F16"
    U8 = "U8"

    @property
    def numpy(self) -> np.dtype[Any]:
        """Return the little-endian numpy type."""
        return np.dtype({"F32": "<f4", "F16": "<f2", "U8": "u1"}[self.value])


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is before there are values for it."""

    name: str
    dtype: TensorType
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_elements * self.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Where a tensor lies: bytes from the beginning of the file, as ONNX external data counts them."""

    offset_bytes: int
    length_bytes: int
