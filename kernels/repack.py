"""The INT4 layout that the GPU kernels read, and the way to it from the bundle's.

Rows are outputs. A linear [K, N] becomes tiles of 16 rows by 128 inputs, each 1 KiB and contiguous:

    words    int16 [N', K', 16, 32]      word p of a row holds inputs p, 32 + p, 64 + p, 96 + p in nibbles 0..3 (lowest
                                         first), unsigned: a symmetric weight is stored as q + 8
    scales   fp16  [N', K', 8, 2, S]     S = 128 / G blocks of a tile; row 8 h + g lies at [g, h]
    zeros    uint8 [N', K', 8, 2, S]     or absent: then the zero point is 8

N' = ceil(N / 16), K' = ceil(K / 128). What lies outside N and K has scale 0. Why so: nibble i of all 32 words is one
tensor-core operand of 32 inputs in natural order, its registers come out of one 16-byte load a thread with one AND
each, and a warp's load is 512 contiguous bytes. [g, h] puts the two rows that a thread owns side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from edgeprec.errors import KernelError
from edgeprec.kernels.layout import Int4Weight, num_groups

__all__ = ["ROWS_PER_TILE", "TILE_K", "DeviceInt4Weight", "device_bytes", "repack"]

ROWS_PER_TILE = 16
TILE_K = 128
_WORDS_PER_ROW = 32
_NIBBLES = 4
_SYMMETRIC_ZERO = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInt4Weight:
    """A linear layer in the module's layout, on one device."""

    words: torch.Tensor  # int16 [N', K', 16, 32]
    scales: torch.Tensor  # fp16 [N', K', 8, 2, S]
    zeros: torch.Tensor | None  # uint8 [N', K', 8, 2, S]
    n: int
    k: int
    group_size: int

    @property
    def row_tiles(self) -> int:
        """N', tiles along the outputs."""
        return int(self.words.shape[0])

    @property
    def k_tiles(self) -> int:
        """K', tiles along the inputs."""
        return int(self.words.shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors together."""
        tensors = (self.words, self.scales, self.zeros)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)

    def to(self, device: torch.device | str) -> DeviceInt4Weight:
        """Return a copy on ``device``."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(self, words=self.words.to(device), scales=self.scales.to(device), zeros=zeros)

    def place(self, arena: torch.Tensor) -> DeviceInt4Weight:
        """Copy into ``arena``, uint8 [num_bytes] on any device and 16-byte aligned, and return views of it.

        Raises:
            KernelError: the arena is not of this size and type.
        """
        if arena.dtype is not torch.uint8 or arena.numel() != self.num_bytes:
            raise KernelError(
                f"the INT4 arena is {arena.dtype} of {arena.numel()} elements, expected uint8 of {self.num_bytes}"
            )
        words, offset = _view(arena, 0, self.words)
        scales, offset = _view(arena, offset, self.scales)
        zeros = None if self.zeros is None else _view(arena, offset, self.zeros)[0]
        return replace(self, words=words, scales=scales, zeros=zeros)


def device_bytes(*, k: int, n: int, group_size: int, has_zeros: bool) -> int:
    """Return what a linear [K, N] takes on the device, before it is there."""
    tiles = num_groups(n, ROWS_PER_TILE) * num_groups(k, TILE_K)
    blocks = TILE_K // group_size
    return tiles * ROWS_PER_TILE * (TILE_K // 2 + blocks * (3 if has_zeros else 2))


def repack(weight: Int4Weight, device: torch.device | str = "cpu") -> DeviceInt4Weight:
    """Bring a bundle's weight into the GPU's layout, computing on ``device``."""
    row_tiles, k_tiles = num_groups(weight.n, ROWS_PER_TILE), num_groups(weight.k, TILE_K)
    zeros = None
    if weight.zeros is not None:
        zeros = _per_row(_unpack(torch.from_numpy(weight.zeros).to(device), weight.n), weight, row_tiles, k_tiles)
    return DeviceInt4Weight(
        words=_words(weight, device, row_tiles, k_tiles),
        scales=_per_row(torch.from_numpy(weight.scales).to(device), weight, row_tiles, k_tiles),
        zeros=zeros,
        n=weight.n,
        k=weight.k,
        group_size=weight.group_size,
    )


def _words(weight: Int4Weight, device: torch.device | str, row_tiles: int, k_tiles: int) -> torch.Tensor:
    nibbles = _unpack(torch.from_numpy(weight.packed).to(device), weight.n)  # [K, N]
    if weight.zeros is None:
        nibbles = nibbles ^ _SYMMETRIC_ZERO  # two's complement to q + 8
    padded = nibbles.new_full((k_tiles * TILE_K, row_tiles * ROWS_PER_TILE), _SYMMETRIC_ZERO)
    padded[: weight.k, : weight.n] = nibbles
    planes = padded.view(k_tiles, _NIBBLES, _WORDS_PER_ROW, row_tiles, ROWS_PER_TILE)
    planes = planes.permute(3, 0, 4, 2, 1).contiguous()  # [N', K', 16, 32, 4]
    low, high = planes[..., 0] | planes[..., 1] << 4, planes[..., 2] | planes[..., 3] << 4
    words: torch.Tensor = torch.stack((low, high), dim=-1).view(torch.int16)  # bytes, lowest first
    return words.squeeze(-1)


def _per_row(values: torch.Tensor, weight: Int4Weight, row_tiles: int, k_tiles: int) -> torch.Tensor:
    """Arrange one value per block and output [ceil(K / G), N] as [N', K', 8, 2, S]."""
    blocks = TILE_K // weight.group_size
    padded = values.new_zeros((k_tiles * blocks, row_tiles * ROWS_PER_TILE))
    padded[: values.shape[0], : weight.n] = values
    tiles = padded.view(k_tiles, blocks, row_tiles, 2, 8)
    return tiles.permute(2, 0, 4, 3, 1).contiguous()


def _unpack(packed: torch.Tensor, n: int) -> torch.Tensor:
    """Return the nibbles [R, N], 0..15, of uint8 [R, ceil(N / 2)]."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(1)[:, :n]


def _view(arena: torch.Tensor, offset: int, source: torch.Tensor) -> tuple[torch.Tensor, int]:
    end = offset + source.numel() * source.element_size()
    view = arena[offset:end].view(source.dtype).view(source.shape)
    view.copy_(source)
    return view, end
