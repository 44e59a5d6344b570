"""Clip search: each block takes the grid that errs least, each input weighted by how large it is on real text.

A weight w adds x w to an output, so a block costs sum_k m_k (w_k - s q_k)^2, m_k the mean of x_k^2. For given levels
q the best scale is s = A / B with A = sum m w q and B = sum m q^2, and the cost is then sum m w^2 - A^2 / B. So the
search tries a list of scales only to get different levels, compares A^2 / B, and takes the scale from the winner. The
result is never worse than round-to-nearest in the cost above.
"""

from __future__ import annotations

import numpy as np

from edgeprec.export.quantize_grid import Array, Grid, GridKind, block_error, range_grid, round_scales, round_to_levels
from edgeprec.export.quantize_statistics import InputStatistics
from edgeprec.export.quantize_tiles import FloatWeight, Int4Builder, as_blocks, tiles
from edgeprec.kernels.layout import Int4Weight

__all__ = ["clip_grid", "importance_of", "quantize_clip"]

# Scales tried, as shares of the one that covers the range. Above 1 a coarser step can still fit better. Finer lists
# (45 steps), a second rounding with the fitted scale, and zero points one step aside changed the error by under 0.5 %.
_FACTORS = tuple(np.float32(factor) for factor in np.linspace(0.6, 1.15, 23))
_IMPORTANCE_FLOOR = 1e-3  # of the mean: an input that was silent on the calibration text may yet speak


def importance_of(statistics: InputStatistics | None, k: int) -> Array:
    """Return the weight [K] of each input in the cost: its second moment, or 1 where nothing was measured."""
    if statistics is None or not statistics.second_moment.any():
        return np.ones(k, np.float32)
    relative = statistics.second_moment / statistics.second_moment.mean(dtype=np.float64)
    importance: Array = np.maximum(relative, _IMPORTANCE_FLOOR).astype(np.float32)
    return importance


def clip_grid(blocks: Array, importance: Array, kind: GridKind) -> Grid:
    """Return the best grid found for ``blocks`` [B, G, N] with ``importance`` [B, G, 1]."""
    covering = range_grid(blocks, kind)
    fitted = Grid(round_scales(_fit_scales(blocks, importance, covering)), covering.lows)
    is_worse = block_error(blocks, fitted, importance) > block_error(blocks, covering, importance)
    return Grid(np.where(is_worse, covering.scales, fitted.scales), covering.lows)


def _fit_scales(blocks: Array, importance: Array, covering: Grid) -> Array:
    """Return A / B [B, 1, N] of the levels with the largest A^2 / B over all factors."""
    weighted = blocks * importance
    levels, products = np.empty_like(blocks), np.empty_like(blocks)
    best_gain, best_scales = np.zeros_like(covering.scales), np.zeros_like(covering.scales)
    for factor in _FACTORS:
        round_to_levels(blocks, Grid(covering.scales * factor, covering.lows), out=levels)
        fit = np.einsum("bgn,bgn->bn", weighted, levels)[:, None]  # A
        size = np.einsum("bgn,bgn->bn", np.multiply(levels, importance, out=products), levels)[:, None]  # B
        scales = np.divide(fit, size, out=np.zeros_like(fit), where=size > 0.0)
        gain = scales * fit
        is_better = gain > best_gain
        np.copyto(best_gain, gain, where=is_better)
        np.copyto(best_scales, scales, where=is_better)
    return best_scales


def quantize_clip(
    weight: FloatWeight, *, group_size: int, kind: GridKind, statistics: InputStatistics | None
) -> Int4Weight:
    """Quantize ``weight`` [K, N] block by block; without ``statistics`` every input counts the same."""
    builder = Int4Builder(weight.shape, group_size=group_size, kind=kind)
    importance = importance_of(statistics, weight.shape[0])[:, None]
    for rows, columns in tiles(weight.shape, group_size):
        blocks = as_blocks(weight, rows, columns, group_size)
        grid = clip_grid(blocks, as_blocks(importance, rows, slice(0, 1), group_size), kind)
        builder.put(rows, columns, round_to_levels(blocks, grid), grid)
    return builder.finish()
