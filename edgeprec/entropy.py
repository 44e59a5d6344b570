"""How sure a model was: entropy and margin of a row of logits, and entropy smoothed over a few tokens.

    H = -sum p_i log2 p_i = log2(S) - sum(e_i x_i) / (S ln 2)    with x = logits - max, e = exp(x), S = sum(e)

Entropy is in bits, the margin is the gap between the two largest logits (in nats of odds). No BLAS is called:
results do not depend on the number of threads, and no second thread pool competes with the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeprec.errors import ConfigError, EngineError

__all__ = ["RowStatistics", "SmoothedEntropy", "row_statistics"]

_FLOOR = np.float32(
    -80.0
)  # exp(-80) weighs nothing and is still a normal float, so neither 0 * inf nor denormals occur
_NATS_PER_BIT = log(2.0)


class RowStatistics(NamedTuple):
    """What the policy needs of every row of logits. ``margin`` is infinite when one token has all the mass."""

    argmax: npt.NDArray[np.int64]  # [T], the lowest id of a tie
    entropy_bits: npt.NDArray[np.float32]  # [T]
    margin: npt.NDArray[np.float32]  # [T]


def row_statistics(logits: npt.NDArray[np.float32]) -> RowStatistics:
    """Return argmax, entropy in bits and top-two margin of each row of ``logits`` [T, V], which is left as it was.

    Tokens with a logit of -inf have no mass. Tokens that tie at +inf share all of it.

    Raises:
        EngineError: a row holds NaN, or nothing above -inf.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise EngineError(f"logits have shape {logits.shape}, expected [rows, vocabulary of 2 or more]")
    scratch = np.empty((2, logits.shape[1]), np.float32)
    with np.errstate(over="ignore"):  # a gap wider than float32 is as good as infinite
        rows = [_one_row(row, scratch, index) for index, row in enumerate(logits)]
    argmax, entropy, margin = zip(*rows, strict=True) if rows else ((), (), ())
    return RowStatistics(np.array(argmax, np.int64), np.array(entropy, np.float32), np.array(margin, np.float32))


def _one_row(row: npt.NDArray[np.float32], scratch: npt.NDArray[np.float32], index: int) -> tuple[int, float, float]:
    shifted, weights = scratch
    top = int(row.argmax())
    peak = row[top]
    if not np.isfinite(peak):
        return _row_without_finite_peak(row, top, index)
    np.subtract(row, peak, out=shifted)
    margin = _gap_to_second(shifted, top)
    np.maximum(shifted, _FLOOR, out=shifted)
    np.exp(shifted, out=weights)
    total = float(weights.sum())
    np.multiply(weights, shifted, out=weights)
    entropy = log2(total) - float(weights.sum()) / (total * _NATS_PER_BIT)
    return top, max(entropy, 0.0), margin


def _gap_to_second(shifted: npt.NDArray[np.float32], top: int) -> float:
    shifted[top] = -inf
    second = float(shifted.max())
    shifted[top] = 0.0
    return -second


def _row_without_finite_peak(row: npt.NDArray[np.float32], top: int, index: int) -> tuple[int, float, float]:
    if row[top] == inf:
        ties = int(np.count_nonzero(row == inf))
        return top, log2(ties), inf if ties == 1 else 0.0
    found = "NaN" if np.isnan(row[top]) else "only -inf"
    raise EngineError(
        f"row {index} of the logits holds {found}, expected numbers: the engine or the weights are broken, "
        "run edgeprec verify on the bundle"
    )


@dataclass(frozen=True, slots=True)
class SmoothedEntropy:
    """The mean entropy of the last ``window`` tokens, as a value: rewinding is keeping the older one.

    Drafting pushes the draft's entropies onto a copy; when FP16 has spoken, that copy is dropped and FP16's entropies
    of the emitted tokens are pushed onto the value from before.
    """

    window: int = 3
    entropies_bits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"controller: window is {self.window}, expected 1 or more tokens")

    @property
    def bits(self) -> float | None:
        """Return the smoothed entropy, None before the first token."""
        if not self.entropies_bits:
            return None
        return sum(self.entropies_bits) / len(self.entropies_bits)

    def pushed(self, *entropies_bits: float) -> SmoothedEntropy:
        """Return the window after these tokens, oldest first."""
        return SmoothedEntropy(self.window, (self.entropies_bits + entropies_bits)[-self.window :])
