"""GPTQ: inputs are rounded one after the other, and each makes up for the errors of those before it.

The error of an output is e^T H e with e = w - w_hat and H the mean of x x^T. With H = M D M^T, M upper triangular with
a unit diagonal, it is sum_k D_k (e_k + sum_{j<k} M_jk e_j)^2. So input k is rounded not from w_k but from
w_k + sum_{j<k} M_jk e_j, which leaves each term at its rounding error. This is GPTQ (Frantar et al., 2023) in the
form of LDLQ (Chee et al., QuIP, 2023, who prove them the same); it needs one Cholesky factor and no inverse.

Blocks come in K order. Each takes its grid by clip search on the values to be rounded, weighted by D: that is what a
rounding error costs once the inputs after it have made up for it.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from edgeprec.errors import ConfigError
from edgeprec.export.quantize_clip import clip_grid
from edgeprec.export.quantize_grid import Array, Grid, GridKind, round_to_levels
from edgeprec.export.quantize_statistics import InputStatistics
from edgeprec.export.quantize_tiles import FloatWeight, Int4Builder, column_slices
from edgeprec.kernels.layout import Int4Weight

__all__ = ["quantize_gptq"]

_LOG = logging.getLogger(__name__)
_DAMPING = (0.01, 0.1, 1.0)  # of the mean diagonal; the next one where the factor does not exist
_COLUMNS = 1024  # carried through all of K at a time: a block of them fits into a core's cache
_ROWS = 256  # that earlier errors are carried to in one product, which for a block's few rows is mostly overhead


def quantize_gptq(
    weight: FloatWeight, *, group_size: int, kind: GridKind, statistics: InputStatistics | None
) -> Int4Weight:
    """Quantize ``weight`` [K, N] against the Hessian of its inputs.

    Raises:
        ConfigError: ``statistics`` has no Hessian.
    """
    if statistics is None or statistics.hessian is None:
        raise ConfigError("quantizer gptq needs the Hessian of the inputs, got none: gather it, or use clip")
    carry, importance = _factorize(statistics.hessian)
    builder = Int4Builder(weight.shape, group_size=group_size, kind=kind)
    for columns in column_slices(weight.shape[1], _COLUMNS):
        original = weight[:, columns].astype(np.float32)
        errors, height = np.zeros_like(original), original.shape[0]
        for first in range(0, height, _ROWS):
            ahead = slice(first, min(first + _ROWS, height))
            carried = original[ahead] + carry[:first, ahead].T @ errors[:first]
            for start in range(first, ahead.stop, group_size):
                rows = slice(start, min(start + group_size, height))
                targets = carried[start - first : rows.stop - first] + carry[first:start, rows].T @ errors[first:start]
                grid = clip_grid(targets[None], importance[rows].reshape(1, -1, 1), kind)
                levels, errors[rows] = _round_in_turn(targets, original[rows], grid, carry[rows, rows])
                builder.put(rows, columns, levels, grid)
    return builder.finish()


def _round_in_turn(targets: Array, original: Array, grid: Grid, carry: Array) -> tuple[Array, Array]:
    """Return levels and errors [G, N] of one block. ``targets`` hold what earlier blocks left and take on the rest.

    A row of errors goes to the rows below as an outer product: cheaper than so many small calls of BLAS, whose threads
    would spend their time waiting for each other.
    """
    levels, errors, carried = np.empty_like(targets), np.empty_like(targets), np.empty_like(targets)
    one_input = Grid(grid.scales[0], grid.lows[0])  # [1, N]
    for k in range(targets.shape[0]):
        round_to_levels(targets[k : k + 1], one_input, out=levels[k : k + 1])
        errors[k] = original[k] - levels[k] * one_input.scales[0]
        targets[k + 1 :] += np.multiply(carry[k, k + 1 :, None], errors[k], out=carried[k + 1 :])
    return levels, errors


def _factorize(hessian: npt.NDArray[np.float32]) -> tuple[Array, Array]:
    """Return M [K, K], unit upper triangular, and D [K] of the damped Hessian M D M^T; D relative to its mean.

    Raises:
        ConfigError: the matrix is not positive definite even with the strongest damping, so it is no Hessian.
    """
    mean = float(hessian.diagonal().mean(dtype=np.float64)) or 1.0
    for damping in _DAMPING:
        damped = hessian[::-1, ::-1].astype(np.float64)  # turned round, for a factor that is upper triangular
        damped[np.diag_indices_from(damped)] += damping * mean
        try:
            factor = np.linalg.cholesky(damped)[::-1, ::-1]
        except np.linalg.LinAlgError:
            _LOG.warning("gptq: Hessian of %d inputs has no factor at damping %g", hessian.shape[0], damping)
            continue
        diagonal = factor.diagonal()
        remaining = diagonal**2
        return (factor / diagonal).astype(np.float32), (remaining / remaining.mean()).astype(np.float32)
    raise ConfigError(
        f"Hessian of {hessian.shape[0]} inputs is not positive definite at damping {_DAMPING[-1]:g}: "
        "gather it again as the mean of x x^T, or use clip"
    )
