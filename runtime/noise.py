"""Gumbel noise keyed by (seed, position, token id): the only randomness there is in sampling.

Adding the noise of a position to log-probabilities and taking the largest draws a token from them. Because the noise of
a position never depends on who asks, draft and target draw with the same noise: a draft token is right exactly when it
is the token the target itself draws there.

Philox4x64 is a counter-based generator: key = seed, counter = (block, 0, position, 0), 32 bits for each token id in
order. These bits are the same on every platform; the logarithms agree to float32 rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["gumbel_noise"]

_STEP = np.float32(2.0**-32)
_BELOW_ONE = np.float32(1.0 - 2.0**-24)


def gumbel_noise(
    *, seed: int, position: int, vocab_size: int, token_ids: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float32]:
    """Return the noise of every token at ``position``, float32 [V], or of ``token_ids`` only, float32 [len(ids)].

    The value of a token is the same either way. Every value is finite.
    """
    bits = _random_bits(seed, position, vocab_size)
    if token_ids is not None:
        bits = bits[token_ids]
    # With u = (bits + 1/2) / 2**32 near 0, -log1p(-u) keeps its relative precision: that is where the maxima come from.
    values = bits.astype(np.float32)
    values += np.float32(0.5)
    values *= _STEP
    np.minimum(values, _BELOW_ONE, out=values)
    np.negative(values, out=values)
    np.log1p(values, out=values)
    np.negative(values, out=values)
    np.log(values, out=values)
    return np.negative(values, out=values)


def _random_bits(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    generator = np.random.Philox(key=seed, counter=[0, 0, position, 0])
    words = np.asarray(generator.random_raw((vocab_size + 1) // 2))
    return words.astype("<u8", copy=False).view("<u4")[:vocab_size]
