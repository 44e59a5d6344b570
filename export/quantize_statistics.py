"""What the inputs of a linear look like on calibration text: how large each is, and how they move together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.errors import ConfigError

__all__ = ["InputStatistics", "SecondMoments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatistics:
    """Averages over the rows x [K] that entered a linear.

    Raises:
        ConfigError: a shape is wrong, or a value is negative, NaN or infinite where it cannot be.
    """

    second_moment: npt.NDArray[np.float32]  # [K], mean of x_k^2
    hessian: npt.NDArray[np.float32] | None = None  # [K, K], mean of x x^T; only gptq and its report need it

    def __post_init__(self) -> None:
        moment, hessian = self.second_moment, self.hessian
        if moment.ndim != 1:
            raise ConfigError(f"second moments have shape {moment.shape}, expected [K]")
        if not np.isfinite(moment).all() or (moment < 0.0).any():
            raise ConfigError("second moments hold NaN, infinite or negative values: check the calibration inputs")
        if hessian is not None and hessian.shape != (self.k, self.k):
            raise ConfigError(f"Hessian has shape {hessian.shape}, expected ({self.k}, {self.k}) like the moments")
        if hessian is not None and not np.isfinite(hessian).all():
            raise ConfigError("Hessian holds NaN or infinite values: check the activations of the calibration text")

    @property
    def k(self) -> int:
        """Input width of the linear."""
        return int(self.second_moment.shape[0])


class SecondMoments:
    """Gathers ``InputStatistics`` over any number of batches.

    Moments are summed in float64. The Hessian is summed in float32, each batch by itself first, which keeps a linear
    of K inputs at 4 K^2 bytes; gptq's damping is four orders above the rounding this leaves.
    """

    def __init__(self, k: int, *, with_hessian: bool = False) -> None:
        self._moments = np.zeros(k, np.float64)
        self._hessian = np.zeros((k, k), np.float32) if with_hessian else None
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows seen so far."""
        return self._rows

    def add(self, inputs: npt.NDArray[Any]) -> None:
        """Add a batch of rows ``inputs`` [T, K] of any float type.

        Raises:
            ConfigError: the width differs, or a value is NaN or infinite.
        """
        k = self._moments.shape[0]
        if inputs.ndim != 2 or inputs.shape[1] != k:
            raise ConfigError(f"calibration inputs have shape {inputs.shape}, expected [T, {k}]")
        rows = inputs.astype(np.float32, copy=False)
        sums = np.einsum("tk,tk->k", rows, rows, dtype=np.float64)
        if not np.isfinite(sums).all():
            raise ConfigError(f"calibration inputs hold NaN or infinite values in channel {_first_bad(sums)} of {k}")
        self._moments += sums
        if self._hessian is not None:
            self._hessian += rows.T @ rows
        self._rows += rows.shape[0]

    def finish(self) -> InputStatistics:
        """Return the averages over every row added.

        Raises:
            ConfigError: no row was added.
        """
        if self._rows == 0:
            raise ConfigError("no calibration input was seen: the calibration text is empty")
        hessian = None if self._hessian is None else self._hessian / np.float32(self._rows)
        return InputStatistics(second_moment=(self._moments / self._rows).astype(np.float32), hessian=hessian)


def _first_bad(sums: npt.NDArray[np.float64]) -> int:
    return int(np.flatnonzero(~np.isfinite(sums))[0])
