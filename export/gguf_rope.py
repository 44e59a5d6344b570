"""Recover Llama 3's rotary scaling from the factors that a GGUF file stores in ``rope_freqs.weight``.

A converter writes, for each frequency f with wavelength w = 2 pi / f, the number that f is divided by:

    1                                       where w < C / high
    F                                       where w > C / low
    1 / ((1 - s) / F + s)                   between, s = (C / w - low) / (high - low)

F is the factor, C the original context, low and high the frequency factors. (C, low, high) are determined up to a
common scale only, and the scale does not matter: C is taken as the 8192 tokens of every published Llama 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import Llama3RopeScaling
from edgeprec.errors import ConfigError

__all__ = ["recover_rope_scaling", "rope_divisors"]

_ORIGINAL_POSITIONS = 8192
_PUBLISHED = (1.0, 4.0)  # low_freq_factor, high_freq_factor of Llama 3.1, 3.2 and 3.3
_TOLERANCE = 1e-4


def recover_rope_scaling(
    divisors: npt.NDArray[np.floating], *, rope_theta: float, origin: str
) -> Llama3RopeScaling | None:
    """Return the scaling whose divisors [head_dim / 2] these are, or None where all are 1.

    Raises:
        ConfigError: no Llama 3 scaling gives these divisors.
    """
    stored = np.asarray(divisors, np.float64)
    if np.allclose(stored, 1.0, rtol=_TOLERANCE):
        return None
    factor = float(stored.max())
    for low, high in (_PUBLISHED, _fit_factors(stored, factor, rope_theta)):
        if not 0.0 < low < high:
            continue
        scaling = Llama3RopeScaling(
            factor=factor,
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position_embeddings=_ORIGINAL_POSITIONS,
        )
        if np.allclose(rope_divisors(scaling, rope_theta, len(stored)), stored, rtol=_TOLERANCE):
            return scaling
    raise ConfigError(f"{origin}: tensor rope_freqs.weight holds factors of no Llama 3 rope scaling: not supported")


def rope_divisors(scaling: Llama3RopeScaling, rope_theta: float, count: int) -> npt.NDArray[np.float64]:
    """Return what each of ``count`` rotary frequencies is divided by, fastest first."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings / _wavelengths(rope_theta, count)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)


def _fit_factors(stored: npt.NDArray[np.float64], factor: float, rope_theta: float) -> tuple[float, float]:
    """Solve for (low, high) from the frequencies between the two ends: s is linear in C / w."""
    between = (stored > 1.0 + _TOLERANCE) & (stored < factor * (1.0 - _TOLERANCE))
    if np.count_nonzero(between) < 2:
        return (0.0, 0.0)
    smooth = (1.0 / stored[between] - 1.0 / factor) / (1.0 - 1.0 / factor)
    turns = _ORIGINAL_POSITIONS / _wavelengths(rope_theta, len(stored))[between]
    slope, offset = np.polyfit(turns, smooth, 1)
    low = -offset / slope
    return (float(low), float(low + 1.0 / slope))


def _wavelengths(rope_theta: float, count: int) -> npt.NDArray[np.float64]:
    return 2.0 * np.pi * rope_theta ** (np.arange(count) / count)
