"""The one place where the order of INT4 nibbles is written.

A quantized linear [K, N] is stored in blocks of ``group_size`` along K, as ONNX stores an INT4 tensor:

    packed   uint8  [K, ceil(N / 2)]   byte j of row k holds q[k, 2j] in its low nibble and q[k, 2j + 1] in its high one
    scales   float16 [ceil(K / G), N]
    zeros    uint8  [ceil(K / G), ceil(N / 2)], packed the same way, or absent

Symmetric: q is signed two's complement in -8..7 and w = q * scale. With zero points: q is unsigned in 0..15, the zero
point too, and w = (q - zero) * scale. The last block along K may be short. An odd N leaves the last high nibble 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeprec.errors import KernelError

__all__ = ["GROUP_SIZES", "Int4Weight", "num_groups", "pack_nibbles", "unpack_nibbles"]

GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Weight:
    """A linear layer in INT4; see the module's docstring for the arrays.

    Raises:
        KernelError: a shape or type does not match the layout.
    """

    packed: npt.NDArray[np.uint8]  # [K, ceil(N / 2)]
    scales: npt.NDArray[np.float16]  # [ceil(K / G), N]
    zeros: npt.NDArray[np.uint8] | None  # [ceil(K / G), ceil(N / 2)]
    group_size: int

    def __post_init__(self) -> None:
        if self.group_size not in GROUP_SIZES:
            raise KernelError(f"INT4 group size is {self.group_size}, expected one of {GROUP_SIZES}")
        groups, n = num_groups(self.k, self.group_size), self.n
        half = (n + 1) // 2
        if self.packed.dtype != np.uint8 or self.packed.shape != (self.k, half):
            raise KernelError(f"INT4 weight is {self.packed.dtype} {self.packed.shape}, expected uint8 [K, {half}]")
        if self.scales.dtype != np.float16 or self.scales.shape != (groups, n):
            raise KernelError(
                f"INT4 scales are {self.scales.dtype} {self.scales.shape}, expected float16 ({groups}, {n})"
            )
        if self.zeros is not None and (self.zeros.dtype != np.uint8 or self.zeros.shape != (groups, half)):
            raise KernelError(
                f"INT4 zero points are {self.zeros.dtype} {self.zeros.shape}, expected uint8 ({groups}, {half})"
            )

    @property
    def k(self) -> int:
        """Input width."""
        return int(self.packed.shape[0])

    @property
    def n(self) -> int:
        """Output width."""
        return int(self.scales.shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays together."""
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)


def num_groups(k: int, group_size: int) -> int:
    """Return how many blocks cover ``k`` inputs."""
    return -(-k // group_size)


def pack_nibbles(values: npt.NDArray[np.int8] | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pack [R, N] values of -8..7 or 0..15 into uint8 [R, ceil(N / 2)], low nibble first."""
    nibbles = values.astype(np.uint8) & 0x0F  # [R, N]
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
    return np.ascontiguousarray(nibbles[:, 0::2] | (nibbles[:, 1::2] << 4))


def unpack_nibbles(packed: npt.NDArray[np.uint8], *, n: int, signed: bool) -> npt.NDArray[np.int8]:
    """Return the [R, N] values of a packed array: -8..7 when ``signed``, else 0..15."""
    nibbles = np.empty((packed.shape[0], packed.shape[1] * 2), np.int8)
    nibbles[:, 0::2] = packed & 0x0F
    nibbles[:, 1::2] = packed >> 4
    values = nibbles[:, :n]
    return ((values ^ 8) - 8).astype(np.int8) if signed else values
