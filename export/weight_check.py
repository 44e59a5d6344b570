"""Refuse weights that FP16 cannot hold: NaN, infinities and values beyond its range."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeprec.errors import ConfigError
from edgeprec.export.tensor_source import FloatArray

__all__ = ["WeightCheck", "to_fp16"]

_FP16_OVERFLOW = 65520.0  # the smallest magnitude that rounds to infinity; the largest finite FP16 is 65504


class WeightCheck:
    """Collects what is wrong with one tensor while its parts pass by; ``finish`` raises for all of it at once."""

    __slots__ = ("bad_values", "largest", "name", "total_values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bad_values = 0
        self.total_values = 0
        self.largest = 0.0

    def add(self, values: FloatArray) -> None:
        """Look at a part of the tensor."""
        self.total_values += values.size
        if values.dtype == np.float16:
            self.bad_values += values.size - int(np.count_nonzero(np.isfinite(values)))
            return
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))  # NaN passes through both
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = np.isfinite(values)
            self.bad_values += values.size - int(np.count_nonzero(finite))
            low, high = float(values[finite].min(initial=0.0)), float(values[finite].max(initial=0.0))
        self.largest = max(self.largest, -low, high)

    @property
    def is_clean(self) -> bool:
        """Return whether everything seen so far fits into FP16."""
        return self.bad_values == 0 and self.largest < _FP16_OVERFLOW

    def finish(self) -> None:
        """Raise for what was seen.

        Raises:
            ConfigError: names the tensor and how many values are NaN or infinite, or the largest magnitude.
        """
        if self.bad_values:
            raise ConfigError(
                f"tensor {self.name} holds {self.bad_values} NaN or infinite values of {self.total_values}, "
                "expected finite weights: the checkpoint is damaged or its training diverged"
            )
        if not self.is_clean:
            raise ConfigError(
                f"tensor {self.name} holds a weight of magnitude {self.largest:.6g}, expected at most 65504: "
                "FP16 cannot hold it, and clipping it would change the model"
            )


def to_fp16(values: FloatArray) -> npt.NDArray[np.float16]:
    """Round checked values to FP16, to nearest even."""
    return values.astype(np.float16, copy=False)
