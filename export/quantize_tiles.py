"""Walking over a weight in pieces that fit into a core's cache, and putting the INT4 result together.

Temporaries are a few times one tile, whatever the size of the weight: a quantizer's peak memory is its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from edgeprec.export.quantize_grid import Array, Grid, GridKind
from edgeprec.kernels.layout import Int4Weight, num_groups, pack_nibbles

__all__ = ["FloatWeight", "Int4Builder", "as_blocks", "column_slices", "tiles"]

FloatWeight = npt.NDArray[np.float16] | npt.NDArray[np.float32]

_TILE_COLUMNS = 512
_TILE_VALUES = 1 << 16  # 256 kB in float32: four of them fit into 1 MB of L2


def column_slices(n: int, width: int = _TILE_COLUMNS) -> Iterator[slice]:
    """Yield slices that cover ``n`` columns; each begins at an even column, so packed bytes are never shared."""
    for start in range(0, n, width):
        yield slice(start, min(start + width, n))


def tiles(shape: tuple[int, ...], group_size: int) -> Iterator[tuple[slice, slice]]:
    """Yield (rows, columns) that cover [K, N]: whole blocks, several at a time, and the short last one by itself."""
    k, n = shape
    blocks = max(1, _TILE_VALUES // (group_size * min(n, _TILE_COLUMNS)))
    whole = k // group_size * group_size
    spans = [slice(start, min(start + blocks * group_size, whole)) for start in range(0, whole, blocks * group_size)]
    if whole < k:
        spans.append(slice(whole, k))
    for columns in column_slices(n):
        for rows in spans:
            yield rows, columns


class Int4Builder:
    """Takes levels and grids tile by tile and gives the packed weight."""

    def __init__(self, shape: tuple[int, ...], *, group_size: int, kind: GridKind) -> None:
        k, n = shape
        groups, half = num_groups(k, group_size), (n + 1) // 2
        self._group_size = group_size
        self._packed = np.zeros((k, half), np.uint8)
        self._scales = np.zeros((groups, n), np.float16)
        self._zeros = np.zeros((groups, half), np.uint8) if kind is GridKind.ZERO_POINT else None

    def put(self, rows: slice, columns: slice, levels: Array, grid: Grid) -> None:
        """Store ``levels`` [R, N'] or [B, G, N'] of a tile with its ``grid`` of ceil(R / group_size) blocks."""
        blocks = slice(rows.start // self._group_size, num_groups(rows.stop, self._group_size))
        packed = slice(columns.start // 2, (columns.stop + 1) // 2)
        self._scales[blocks, columns] = grid.scales[:, 0, :]
        if self._zeros is not None:
            self._zeros[blocks, packed] = pack_nibbles((-grid.lows[:, 0, :]).astype(np.uint8))
            levels = levels.reshape(grid.lows.shape[0], -1, levels.shape[-1]) - grid.lows
        self._packed[rows, packed] = pack_nibbles(levels.reshape(-1, levels.shape[-1]).astype(np.int8))

    def finish(self) -> Int4Weight:
        """Return the weight put together."""
        return Int4Weight(packed=self._packed, scales=self._scales, zeros=self._zeros, group_size=self._group_size)


def as_blocks(weight: FloatWeight, rows: slice, columns: slice, group_size: int) -> Array:
    """Return a tile as float32 blocks [B, G, N']; the short last block is one block of fewer inputs."""
    tile = np.ascontiguousarray(weight[rows, columns], np.float32)
    return tile.reshape(-1, min(group_size, tile.shape[0]), tile.shape[1])
