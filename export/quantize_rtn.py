"""Round to nearest: each block's grid covers its range, and nothing else is looked at."""

from __future__ import annotations

from edgeprec.export.quantize_grid import GridKind, range_grid, round_to_levels
from edgeprec.export.quantize_statistics import InputStatistics
from edgeprec.export.quantize_tiles import FloatWeight, Int4Builder, as_blocks, tiles
from edgeprec.kernels.layout import Int4Weight

__all__ = ["quantize_rtn"]


def quantize_rtn(
    weight: FloatWeight, *, group_size: int, kind: GridKind, statistics: InputStatistics | None = None
) -> Int4Weight:
    """Quantize ``weight`` [K, N]; every value errs by at most half a step. ``statistics`` are not used."""
    del statistics
    builder = Int4Builder(weight.shape, group_size=group_size, kind=kind)
    for rows, columns in tiles(weight.shape, group_size):
        blocks = as_blocks(weight, rows, columns, group_size)
        grid = range_grid(blocks, kind)
        builder.put(rows, columns, round_to_levels(blocks, grid), grid)
    return builder.finish()
