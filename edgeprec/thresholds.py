"""From counted agreement to rates that can be trusted, and from rates to the controller's two thresholds.

Rates. A bin with few tokens says little, so each rate is pulled towards a broader one (Beta smoothing), and agreement
may only fall as entropy rises (isotonic regression by pooling neighbours that disagree with that).

theta_low is the largest entropy whose bin still agrees with FP16 at ``LOW_AGREEMENT`` or more.

theta_high. A round that drafts k tokens costs ``k draft_step + plain_step + k verify_row`` and emits ``1 + accepted``.
One more drafted row adds ``draft_step + verify_row`` to the cost, and ``p(H)`` tokens when all before it are accepted.
The ratio tokens / cost of the round rises exactly when the ratio of the additions exceeds it. It is at least that of
plain decoding, ``1 / plain_step``. So the row cannot pay unless

    p(H) >= (draft_step + verify_row) / plain_step

and theta_high is the entropy at which the smoothed p(H) falls below that. How much is lost by earlier rejections, and
by how much speculation beats plain decoding, the controller adds at run time from what it measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgeprec.calibration import ENTROPY_EDGES_BITS, MARGIN_EDGES, AgreementGrid, StepCosts

__all__ = [
    "LOW_AGREEMENT",
    "MAX_ENTROPY_BITS",
    "Thresholds",
    "cell_rates",
    "entropy_rates",
    "falling",
    "find_thresholds",
    "highest_paying_bits",
]

LOW_AGREEMENT = 0.99
MAX_ENTROPY_BITS = 32.0  # more than the entropy of any vocabulary: the upper edge of the last bin
_ROW_STRENGTH = 2.0  # tokens' worth of the overall rate in an entropy bin
_CELL_STRENGTH = 8.0  # tokens' worth of the bin's rate in one of its cells
_UNKNOWN_RATE = 0.5
_COLUMNS = len(MARGIN_EDGES) + 1


class Thresholds(NamedTuple):
    """The controller's band in bits, theta_low <= theta_high."""

    theta_low_bits: float
    theta_high_bits: float


def entropy_rates(grid: AgreementGrid) -> tuple[float, ...]:
    """Return the smoothed agreement of each entropy bin [8]; it never rises with entropy.

    An empty bin has the rate of the next bin above it, which can only be lower than its own; above the last counted bin
    nothing is known and nothing better than 0.5 assumed.
    """
    overall = _UNKNOWN_RATE if grid.agreement is None else grid.agreement
    counted = [row for row, trials in enumerate(grid.trials_by_entropy) if trials]
    trials = [grid.trials_by_entropy[row] for row in counted]
    rates = [
        (grid.agreed_by_entropy[row] + _ROW_STRENGTH * overall) / (count + _ROW_STRENGTH)
        for row, count in zip(counted, trials, strict=True)
    ]
    pooled = falling(rates, trials)
    above = min(pooled[-1], _UNKNOWN_RATE) if pooled else _UNKNOWN_RATE
    return tuple(
        next((rate for known, rate in zip(counted, pooled, strict=True) if known >= row), above)
        for row in range(len(grid.trials_by_entropy))
    )


def cell_rates(grid: AgreementGrid) -> tuple[float, ...]:
    """Return the smoothed agreement of each of the 32 cells; a cell without tokens has its entropy bin's rate."""
    by_entropy = entropy_rates(grid)
    return tuple(
        (agreed + _CELL_STRENGTH * by_entropy[cell // _COLUMNS]) / (trials + _CELL_STRENGTH)
        for cell, (agreed, trials) in enumerate(zip(grid.agreed, grid.trials, strict=True))
    )


def find_thresholds(int4: AgreementGrid, *, draft: AgreementGrid | None = None, costs: StepCosts) -> Thresholds:
    """Return the band: theta_low from the INT4 variant's agreement, theta_high from the drafter's acceptance.

    ``draft`` None means that the INT4 variant drafts. Where drafting pays only in bins that are even safer than
    theta_low, theta_low comes down to theta_high.
    """
    low = _upper_edge(entropy_rates(int4), LOW_AGREEMENT)
    high = highest_paying_bits(entropy_rates(int4 if draft is None else draft), costs)
    return Thresholds(min(low, high), high)


def highest_paying_bits(rates: Sequence[float], costs: StepCosts) -> float:
    """Return theta_high for a drafter's rates by entropy bin (see ``entropy_rates``)."""
    return _upper_edge(rates, costs.break_even_acceptance)


def _upper_edge(rates: Sequence[float], least: float) -> float:
    """Return where the bins with a rate of at least ``least`` end; 0 when there is none."""
    passing = sum(rate >= least for rate in rates)
    return (0.0, *ENTROPY_EDGES_BITS, MAX_ENTROPY_BITS)[passing]


def falling(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """Return the closest sequence (weighted least squares) that never rises."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] < block[0]:
            mean, mass, length = blocks.pop()
            total = mass + block[1]
            block = ((mean * mass + block[0] * block[1]) / total, total, length + block[2])
        blocks.append(block)
    return tuple(mean for mean, _, length in blocks for _ in range(length))
