"""How likely FP16 is to overrule a drafted token, as a smooth function of the draft's margin and entropy.

    flip(H, m) = lapse + (1 - lapse) / (1 + exp(-(a + b m + c log2 H))),    b <= 0 <= c

Fitted to the calibration's counts by maximum likelihood. A cell of the grid is a range of margins: within one of the
middle cells a token at the lower edge flips five times as often as one at the upper, which a rate by cell cannot tell
apart, and most tokens of which it is the question lie there. ``lapse`` is what flips whatever the margin.

The fit is EM: what is not known of a token of a cell is where in the cell its margin lies and, if it flipped, whether
that was a lapse. A few made-up tokens keep parameters finite where nothing flipped, or nothing else did.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log2

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import ENTROPY_EDGES_BITS, MARGIN_EDGES, AgreementGrid

__all__ = ["FlipFit"]

_STEPS = 60
_COLUMNS = len(MARGIN_EDGES) + 1
_POINTS = 4  # at which a cell's margins are thought to lie
_LARGEST = (2.0 * ENTROPY_EDGES_BITS[-1], 3.0 * MARGIN_EDGES[-1])  # where the last bins are cut off
_LEAST_BITS = ENTROPY_EDGES_BITS[0] / 2
_LAPSE_FLIPS = 0.5  # made-up lapses among all tokens
_SLOPE_STRENGTH = 0.05  # of the pull of slopes to 0, in inverse variance
_MOST_LOGIT = 30.0
_MOST_FLIP = 0.5  # a token likelier wrong than right never stands

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipFit:
    """The fitted function; ``limit`` says which tokens may stand unverified."""

    lapse: float
    intercept: float
    margin_slope: float
    entropy_slope: float

    @classmethod
    def of(cls, grid: AgreementGrid) -> FlipFit:
        """Fit a grid with at least one token."""
        return _fitted(grid)

    def flip(self, entropy_bits: float, margin: float) -> float:
        """Return the probability that FP16 chooses another token."""
        octaves = log2(min(max(entropy_bits, _LEAST_BITS), _LARGEST[0]))
        logit = self.intercept + self.margin_slope * min(margin, _LARGEST[1]) + self.entropy_slope * octaves
        logit = min(max(logit, -_MOST_LOGIT), _MOST_LOGIT)
        return self.lapse + (1.0 - self.lapse) / (1.0 + exp(-logit))

    def limit(self, grid: AgreementGrid, *, epsilon: float) -> float:
        """Return the flip probability up to which tokens like the grid's flip in epsilon of all; 0 when none may."""
        weights = np.repeat(np.asarray(grid.trials, np.float64), _POINTS) / (_POINTS * max(grid.tokens, 1))
        flips = np.array([self.flip(float(bits), float(margin)) for bits, margin in _places()])
        values, where = np.unique(flips, return_inverse=True)
        left = np.cumsum(np.bincount(where, flips * weights))
        met = np.cumsum(np.bincount(where, weights)) > 0.0
        if left[-1] <= epsilon:
            return _MOST_FLIP
        within = values[(left <= epsilon) & met & (values < _MOST_FLIP)]
        return float(within[-1]) if len(within) else 0.0


@lru_cache(maxsize=1)
def _places() -> _Array:
    """Return entropy and margin of every point [32 * 4, 2], cell by cell."""
    entropy = (0.0, *ENTROPY_EDGES_BITS, _LARGEST[0])
    margin = (0.0, *MARGIN_EDGES, _LARGEST[1])
    inside = (np.arange(_POINTS) + 0.5) / _POINTS
    return np.array(
        [
            ((entropy[row] + entropy[row + 1]) / 2, margin[column] + at * (margin[column + 1] - margin[column]))
            for row in range(len(entropy) - 1)
            for column in range(_COLUMNS)
            for at in inside
        ]
    )


@lru_cache(maxsize=8)
def _fitted(grid: AgreementGrid) -> FlipFit:
    trials, agreed = np.asarray(grid.trials, np.float64), np.asarray(grid.agreed, np.float64)
    places = _places()
    rows = np.column_stack((np.ones(len(places)), places[:, 1], np.log2(places[:, 0])))
    lapse, weights = 0.01, np.array([0.0, -1.0, 0.0])
    for _ in range(_STEPS):
        slip = 1.0 / (1.0 + np.exp(-np.clip(rows @ weights, -_MOST_LOGIT, _MOST_LOGIT)))
        flip = lapse + (1.0 - lapse) * slip
        flipped = _spread(trials - agreed, flip)
        lapsed = flipped * lapse / flip
        stood = _spread(agreed, 1.0 - flip)
        lapse = (float(lapsed.sum()) + _LAPSE_FLIPS) / (float(trials.sum()) + 2.0 * _LAPSE_FLIPS)
        weights = _step(rows, flipped - lapsed, stood, weights)
    return FlipFit(
        lapse=lapse,
        intercept=float(weights[0]),
        margin_slope=float(weights[1]),
        entropy_slope=float(weights[2]),
    )


def _spread(counts: _Array, chances: _Array) -> _Array:
    """Share each cell's count out to its points as likely as each is."""
    by_cell = np.maximum(chances.reshape(-1, _POINTS), 1e-300)
    shares: _Array = counts[:, None] * by_cell / by_cell.sum(1, keepdims=True)
    return shares.reshape(-1)


def _step(rows: _Array, flipped: _Array, stood: _Array, weights: _Array) -> _Array:
    """Return the weights after Newton steps on flips and agreements at the points, slopes kept to their side."""
    trial = np.array([1.0, 0.0, 0.0])  # a made-up token of margin 0 that half flips
    rows, flipped, stood = np.vstack((rows, trial)), np.append(flipped, 0.5), np.append(stood, 0.5)
    for _ in range(3):
        chance = 1.0 / (1.0 + np.exp(-np.clip(rows @ weights, -_MOST_LOGIT, _MOST_LOGIT)))
        pull = _SLOPE_STRENGTH * np.array([0.0, 1.0, 1.0])
        slope = rows.T @ (flipped - (flipped + stood) * chance) - pull * weights
        curve = (rows.T * ((flipped + stood) * chance * (1.0 - chance))) @ rows + np.diag(pull + 1e-6)
        weights = weights + np.clip(np.linalg.solve(curve, slope), -2.0, 2.0)
        weights = np.array([weights[0], min(weights[1], 0.0), max(weights[2], 0.0)])
    return weights
