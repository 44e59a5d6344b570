"""The public door to INT4: one linear in, its INT4 form and what that cost out. Linears are independent of each other.

rtn     round to nearest, no statistics
clip    clip search weighted by second moments; seconds of work
gptq    clip search, and each input makes up for the errors of those before it; needs Hessians; the default
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from edgeprec.errors import ConfigError
from edgeprec.export.quantize_clip import quantize_clip
from edgeprec.export.quantize_gptq import quantize_gptq
from edgeprec.export.quantize_grid import FP16_MAX, GridKind
from edgeprec.export.quantize_report import QuantizationError, measure_error
from edgeprec.export.quantize_rtn import quantize_rtn
from edgeprec.export.quantize_statistics import InputStatistics, SecondMoments
from edgeprec.export.quantize_tiles import FloatWeight, tiles
from edgeprec.kernels.layout import GROUP_SIZES, Int4Weight

__all__ = [
    "METHODS",
    "InputStatistics",
    "Method",
    "QuantizationError",
    "QuantizedLinear",
    "QuantizerSettings",
    "SecondMoments",
    "quantize",
]

Method = Literal["rtn", "clip", "gptq"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerSettings:
    """How a model's linears become INT4.

    ``group_size`` is 32 because models small enough for a 4 GB board need it: larger blocks save up to 0.4 bits per
    weight and suit models from about 3B. Signed scales let the largest value of every symmetric block take level -8;
    a compiler that insists on positive ones, as TensorRT's parser does, needs ``has_signed_scales=False``.

    Raises:
        ConfigError: a value is not allowed.
    """

    method: Method = "gptq"
    group_size: int = 32
    is_symmetric: bool = True
    has_signed_scales: bool = True  # of symmetric blocks; with zero points scales are always positive

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"quantizer: method is {self.method!r}, expected one of {', '.join(METHODS)}")
        if self.group_size not in GROUP_SIZES:
            raise ConfigError(f"quantizer: group_size is {self.group_size!r}, expected one of {GROUP_SIZES}")

    @property
    def kind(self) -> GridKind:
        """Which grids a block may have."""
        if not self.is_symmetric:
            return GridKind.ZERO_POINT
        return GridKind.SIGNED if self.has_signed_scales else GridKind.POSITIVE


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """A linear in INT4 and how far it is from the original."""

    weight: Int4Weight
    report: QuantizationError


class _Quantize(Protocol):
    def __call__(
        self, weight: FloatWeight, *, group_size: int, kind: GridKind, statistics: InputStatistics | None
    ) -> Int4Weight: ...


_QUANTIZERS: dict[Method, _Quantize] = {"rtn": quantize_rtn, "clip": quantize_clip, "gptq": quantize_gptq}


def quantize(
    weight: FloatWeight, settings: QuantizerSettings, statistics: InputStatistics | None = None
) -> QuantizedLinear:
    """Quantize one linear ``weight`` [K, N], float16 or float32. The same input gives the same bytes.

    Without ``statistics``, clip takes every input as equally large.

    Raises:
        ConfigError: the weight is no [K, N] array of floats, holds NaN or what FP16 cannot hold; the statistics are of
            another width; gptq got no Hessian.
    """
    _check_weight(weight)
    if statistics is not None and statistics.k != weight.shape[0]:
        raise ConfigError(f"input statistics are of {statistics.k} inputs, expected {weight.shape[0]} like the weight")
    method = settings.method
    quantized = _QUANTIZERS[method](weight, group_size=settings.group_size, kind=settings.kind, statistics=statistics)
    return QuantizedLinear(quantized, measure_error(weight, quantized, method=method, statistics=statistics))


def _check_weight(weight: FloatWeight) -> None:
    if weight.dtype not in (np.float16, np.float32) or weight.ndim != 2 or 0 in weight.shape:
        raise ConfigError(f"weight is {weight.dtype} {weight.shape}, expected float16 or float32 [K, N]")
    for rows, columns in tiles(weight.shape, GROUP_SIZES[0]):
        largest = float(np.abs(weight[rows, columns]).max())
        if not largest <= FP16_MAX:
            what = "NaN" if np.isnan(largest) else f"a value of magnitude {largest:g}"
            raise ConfigError(f"weight holds {what}, expected finite values up to {FP16_MAX:g}, which FP16 can hold")
