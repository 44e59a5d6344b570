"""One block of device memory that a pair's weights, caches and buffers are cut from; its size is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

from edgeprec.errors import EngineError, MemoryBudgetError

__all__ = ["Arena", "aligned_bytes"]

_ALIGNMENT = 256


def aligned_bytes(sizes: Iterable[int]) -> int:
    """Return what tensors of these sizes take in an arena."""
    return sum(size + -size % _ALIGNMENT for size in sizes)


class Arena:
    """Hands out pieces of one allocation, from its beginning to its end."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        try:
            self._memory = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise MemoryBudgetError(
                f"{device} has no {size_bytes / 2**20:,.0f} MiB in one piece: end what else uses it, or lower --context"
            ) from error
        self.device = device
        self._used = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole."""
        return self._memory.numel()

    @property
    def used_bytes(self) -> int:
        """Bytes handed out."""
        return self._used

    def take_bytes(self, size: int) -> torch.Tensor:
        """Return uint8 [size], zero.

        Raises:
            EngineError: more is taken than was planned, which is a fault of the plan.
        """
        start, self._used = self._used, self._used + aligned_bytes([size])
        if self._used > self.size_bytes:
            raise EngineError(
                f"the memory plan has {self.size_bytes:,} bytes, {self._used:,} are wanted: report this with edgeprec "
                "inspect's output"
            )
        return self._memory[start : start + size]

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of zeros; errors are those of ``take_bytes``."""
        return self.take_bytes(prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def copy(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous copy of ``values``, converted; errors are those of ``take_bytes``."""
        return self.take(tuple(values.shape), dtype).copy_(values)
