"""The frequencies of the rotary position embedding, with the scaling of Llama 3.1 and later."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import Llama3RopeScaling, ModelConfig

__all__ = ["inverse_frequencies"]


def inverse_frequencies(config: ModelConfig) -> npt.NDArray[np.float64]:
    """Return theta^(-2i/d) [d / 2], scaled where the model says so (RoFormer; Llama 3.1's model card)."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    return frequencies if config.rope_scaling is None else _llama3(frequencies, config.rope_scaling)


def _llama3(frequencies: npt.NDArray[np.float64], scaling: Llama3RopeScaling) -> npt.NDArray[np.float64]:
    """Slow long wavelengths down by ``factor``, keep short ones, blend in between."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
