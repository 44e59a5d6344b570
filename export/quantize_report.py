"""How far an INT4 weight is from the one it stands for.

Errors are relative: the norm of the difference over the norm of the original, 0 where the original is all zeros.

    weight        of the weight itself, every input alike
    output        of the linear's output, inputs taken as independent: sum_k m_k e_k^2, m_k the mean of x_k^2
    correlated    of the linear's output as it is on the calibration text: e^T H e, H the mean of x x^T
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgeprec.export.quantize_statistics import InputStatistics
from edgeprec.export.quantize_tiles import FloatWeight, column_slices
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.reference import dequantize

__all__ = ["QuantizationError", "measure_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationError:
    """What one linear lost and what it weighs. An error that was not measured is None."""

    method: str
    group_size: int
    is_symmetric: bool
    weights: int
    num_bytes: int  # levels, scales and zero points
    bits_per_weight: float
    max_error: float  # largest |w - w_hat|
    weight_error: float
    output_error: float | None  # None without statistics
    correlated_error: float | None  # None without a Hessian

    @property
    def calibrated_error(self) -> float | None:
        """The error of the output as well as it is known: correlated where there was a Hessian, else independent.

        gptq lowers the correlated error and raises the other one, so only this one compares linears and methods.
        """
        return self.output_error if self.correlated_error is None else self.correlated_error

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``bundle.json``."""
        return asdict(self)


def measure_error(
    weight: FloatWeight, quantized: Int4Weight, *, method: str, statistics: InputStatistics | None
) -> QuantizationError:
    """Compare ``quantized`` with the ``weight`` [K, N] it was made from, a few columns at a time."""
    moments = None if statistics is None else statistics.second_moment.astype(np.float64)
    hessian = None if statistics is None else statistics.hessian
    sums = np.zeros((3, 2))  # weight, output, correlated; each of the difference and of the original
    max_error = 0.0
    for columns in column_slices(weight.shape[1]):
        original = weight[:, columns].astype(np.float32)
        difference = dequantize(_columns(quantized, columns)) - original
        max_error = max(max_error, float(np.abs(difference).max(initial=0.0)))
        for side, values in enumerate((difference, original)):
            squares = np.einsum("kn,kn->k", values, values, dtype=np.float64)
            sums[0, side] += squares.sum()
            if moments is not None:
                sums[1, side] += moments @ squares
            if hessian is not None:
                sums[2, side] += np.einsum("kn,kn->", values, hessian @ values, dtype=np.float64)
    return QuantizationError(
        method=method,
        group_size=quantized.group_size,
        is_symmetric=quantized.zeros is None,
        weights=weight.size,
        num_bytes=quantized.num_bytes,
        bits_per_weight=8.0 * quantized.num_bytes / weight.size,
        max_error=max_error,
        weight_error=_ratio(*sums[0]),
        output_error=None if moments is None else _ratio(*sums[1]),
        correlated_error=None if hessian is None else _ratio(*sums[2]),
    )


def _columns(weight: Int4Weight, columns: slice) -> Int4Weight:
    """Return some columns of a weight; the first one is even."""
    packed = slice(columns.start // 2, (columns.stop + 1) // 2)
    return Int4Weight(
        packed=weight.packed[:, packed],
        scales=weight.scales[:, columns],
        zeros=None if weight.zeros is None else weight.zeros[:, packed],
        group_size=weight.group_size,
    )


def _ratio(difference: float, original: float) -> float:
    """Return sqrt(difference / original); rounding may leave a quadratic form of nothing slightly negative."""
    return float(np.sqrt(max(difference, 0.0) / original)) if original > 0.0 else 0.0
