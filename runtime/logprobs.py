"""Log probabilities of an emitted token and of those most probable in its place.

They are of the model itself: the natural logarithm of softmax(logits) before temperature, penalties and filters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_TOP_LOGPROBS", "TokenLogprobs", "token_logprobs"]

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token's own log probability, and (id, log probability) of the most probable ones, largest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: npt.NDArray[np.float32], token: int, *, top: int) -> TokenLogprobs:
    """Return the log probability of ``token`` in a row of logits [V], and of the ``top`` largest; ties by lower id."""
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    if top == 0:
        return TokenLogprobs(float(row[token]))
    count = min(top, row.size)
    candidates = np.flatnonzero(row >= np.partition(row, -count)[-count])
    best = candidates[np.argsort(-row[candidates], kind="stable")][:count]
    return TokenLogprobs(float(row[token]), tuple((int(index), float(row[index])) for index in best))
