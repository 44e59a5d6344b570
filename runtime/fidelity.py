"""How far predictions are from FP16's for the same text: top-1 agreement and KL divergence, by entropy.

Entropy is that of the predictions judged, not FP16's: what the controller sees at run time. The bins are the
calibration's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import ENTROPY_EDGES_BITS
from edgeprec.entropy import row_statistics

__all__ = ["LOW_ENTROPY_BITS", "Fidelity", "RowComparison", "compare_rows", "count_rows"]

LOW_ENTROPY_BITS = 1.0
_BINS = len(ENTROPY_EDGES_BITS) + 1
_LOW_BINS = ENTROPY_EDGES_BITS.index(LOW_ENTROPY_BITS) + 1
_BITS_PER_NAT = 1.0 / log(2.0)
_FLOOR_NATS = np.float32(-80.0)  # below it a token weighs nothing

Logits = npt.NDArray[np.float32]


class RowComparison(NamedTuple):
    """What one pass said of each token beside what FP16 said."""

    agrees: npt.NDArray[np.bool_]  # [T]
    kl_bits: npt.NDArray[np.float64]  # [T], of FP16's distribution from the other one
    entropy_bits: npt.NDArray[np.float32]  # [T], of the other one


def compare_rows(reference: Logits, logits: Logits) -> RowComparison:
    """Compare logits [T, V] with FP16's ``reference`` [T, V] of the same positions.

    Raises:
        EngineError: a row holds NaN.
    """
    said, wanted = row_statistics(logits), reference.argmax(-1)
    expected, found = _log_probabilities(reference), _log_probabilities(logits)
    kl_nats = np.einsum("tv,tv->t", np.exp(expected), expected - found, dtype=np.float64)
    return RowComparison(said.argmax == wanted, np.maximum(kl_nats, 0.0) * _BITS_PER_NAT, said.entropy_bits)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Sums over tokens by entropy bin [8]; two of them add up."""

    tokens: tuple[int, ...] = (0,) * _BINS
    agreed: tuple[int, ...] = (0,) * _BINS
    kl_bits_sums: tuple[float, ...] = (0.0,) * _BINS

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            tuple(a + b for a, b in zip(self.tokens, other.tokens, strict=True)),
            tuple(a + b for a, b in zip(self.agreed, other.agreed, strict=True)),
            tuple(a + b for a, b in zip(self.kl_bits_sums, other.kl_bits_sums, strict=True)),
        )

    @property
    def top1(self) -> float | None:
        """Return the share of tokens whose most probable choice is FP16's, None without tokens."""
        return _share(sum(self.agreed), sum(self.tokens))

    @property
    def top1_low_entropy(self) -> float | None:
        """Return the same of tokens below 1 bit."""
        return _share(sum(self.agreed[:_LOW_BINS]), sum(self.tokens[:_LOW_BINS]))

    @property
    def kl_bits(self) -> float | None:
        """Return the mean KL divergence per token."""
        return _share(sum(self.kl_bits_sums), sum(self.tokens))

    def bins(self) -> list[dict[str, Any]]:
        """Return each entropy bin in plain values."""
        rows = zip(
            (0.0, *ENTROPY_EDGES_BITS),
            (*ENTROPY_EDGES_BITS, None),
            self.tokens,
            self.agreed,
            self.kl_bits_sums,
            strict=True,
        )
        return [
            {
                "low_bits": low,
                "high_bits": high,
                "tokens": tokens,
                "top1": _share(agreed, tokens),
                "kl_bits": _share(kl_bits, tokens),
            }
            for low, high, tokens, agreed, kl_bits in rows
        ]


def count_rows(rows: RowComparison) -> Fidelity:
    """Sort compared rows into their entropy bins."""
    bins = np.searchsorted(ENTROPY_EDGES_BITS, rows.entropy_bits, side="right")
    return Fidelity(
        tuple(int(count) for count in np.bincount(bins, minlength=_BINS)),
        tuple(int(count) for count in np.bincount(bins[rows.agrees], minlength=_BINS)),
        tuple(float(total) for total in np.bincount(bins, weights=rows.kl_bits, minlength=_BINS)),
    )


def _log_probabilities(logits: Logits) -> Logits:
    """Return the natural logarithm of the softmax of each row."""
    shifted: Logits = np.maximum(logits - logits.max(-1, keepdims=True), _FLOOR_NATS)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
