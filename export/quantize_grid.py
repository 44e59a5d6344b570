"""The sixteen values a block can take, and rounding a block to them.

Both kinds of INT4 are one thing here: a block's values are ``scale * level`` with a level in ``low .. low + 15``.
Symmetric blocks have ``low`` = -8; with zero points it is minus the zero point, -15..0. Blocks are float32 [B, G, N]:
B blocks of G inputs. Scales are always exactly what FP16 stores, never 0, never infinite, so a level chosen here is
the level that is used.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FP16_MAX", "Array", "Grid", "GridKind", "block_error", "range_grid", "round_scales", "round_to_levels"]

Array = npt.NDArray[np.float32]

FP16_MAX = float(np.finfo(np.float16).max)
_FP16_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
_SHORTFALL = 2.0**-10  # FP16 rounds a normal number by at most 2**-11; only subnormal scales fall further short


class GridKind(Enum):
    """Which grids a block may have."""

    POSITIVE = "positive"  # levels -8..7, scale above 0
    SIGNED = "signed"  # levels -8..7, scale of either sign
    ZERO_POINT = "zero_point"  # levels -z..15-z, scale above 0


class Grid(NamedTuple):
    """The values of each block: ``scales * (lows .. lows + 15)``."""

    scales: Array  # [B, 1, N]
    lows: Array  # [B, 1, N], whole numbers -15..0


def round_scales(scales: Array) -> Array:
    """Round scales to FP16, as float32. Never 0 and never infinite.

    Nearest, except that a subnormal scale which would fall short of the range it must cover takes the next one up.
    A scale of exactly 0 belongs to a block of zeros and becomes 1, which kernels and compilers all accept.
    """
    magnitude = np.clip(np.abs(scales), _FP16_SMALLEST, FP16_MAX)
    nearest = magnitude.astype(np.float16)
    is_short = nearest.astype(np.float32) < magnitude * (1.0 - _SHORTFALL)
    rounded = np.where(is_short, np.nextafter(nearest, np.float16(FP16_MAX)), nearest).astype(np.float32)
    return np.where(scales == 0.0, np.float32(1.0), np.copysign(rounded, scales))


def range_grid(blocks: Array, kind: GridKind) -> Grid:
    """Return the finest grid that covers every value of a block, so that rounding errs by at most half a step.

    Symmetric blocks reach one level further down than up. ``GridKind.SIGNED`` turns the block round with a negative
    scale where its largest magnitude is positive, so that it too may take level -8.
    """
    highest = np.maximum(blocks.max(axis=1, keepdims=True), 0.0)  # [B, 1, N]
    lowest = np.minimum(blocks.min(axis=1, keepdims=True), 0.0)
    if kind is GridKind.ZERO_POINT:
        scales = round_scales((highest - lowest) / np.float32(15.0))
        return Grid(scales, np.clip(np.rint(lowest / scales), -15.0, 0.0))
    scales = np.maximum(highest / np.float32(7.0), lowest / np.float32(-8.0))
    if kind is GridKind.SIGNED:
        turned = np.minimum(highest / np.float32(-8.0), lowest / np.float32(7.0))
        scales = np.where(-turned < scales, turned, scales)
    return Grid(round_scales(scales), np.full_like(scales, -8.0))


def round_to_levels(blocks: Array, grid: Grid, *, out: Array | None = None) -> Array:
    """Return the nearest level of every value [B, G, N], as whole float32 numbers."""
    levels: Array = np.multiply(blocks, 1.0 / grid.scales, out=out)
    np.rint(levels, out=levels)
    np.maximum(levels, grid.lows, out=levels)
    np.minimum(levels, grid.lows + np.float32(15.0), out=levels)
    return levels


def block_error(blocks: Array, grid: Grid, importance: Array) -> Array:
    """Return sum_g importance[g] (w - w_hat)^2 of every block [B, 1, N]; ``importance`` is [B, G, 1]."""
    difference = round_to_levels(blocks, grid)
    difference *= grid.scales
    difference -= blocks
    error: Array = np.einsum("bgn,bgn->bn", difference * importance, difference)[:, None]
    return error
