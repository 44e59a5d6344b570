"""Measure an exported pair on a text: where INT4 agrees with FP16, and which layers are sensitive.

The passes come through ``Forward``: this package runs no engine of its own. Agreement is counted as drafting meets it:
a few INT4 rows on top of a cache that FP16 wrote, which FP16 then writes again. Nothing is timed here: the same export
gives the same bytes, and costs are the running device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import AgreementGrid, Calibration, StepCosts, layer_order
from edgeprec.entropy import row_statistics
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.precision import Plan, Precision
from edgeprec.thresholds import find_thresholds

__all__ = ["DraftPasses", "Forward", "calibrate"]

Forward = Callable[[Sequence[int], int, Plan], npt.NDArray[np.float32]]
"""Run tokens [T] at a position with a plan and return logits [T, V]; valid until the next call."""

DRAFT_ROWS = 8
AGREEMENT_TOKENS = 2048
SENSITIVITY_TOKENS = 384
WINDOW_TOKENS = 512


@dataclass(frozen=True, slots=True)
class DraftPasses:
    """A draft model's passes: how to run it, and how many layers it has."""

    forward: Forward
    num_layers: int


def calibrate(
    forward: Forward,
    tokens: Sequence[int],
    *,
    num_layers: int,
    text_name: str,
    progress: Progress,
    draft: DraftPasses | None = None,
) -> Calibration:
    """Return what ``calibration.json`` holds. ``tokens`` [T] are those of the calibration text.

    ``draft`` None = the target's INT4 variant drafts.
    """
    counted = tokens[:AGREEMENT_TOKENS]
    grid = AgreementGrid()
    draft_grid = None if draft is None else AgreementGrid()
    for done, window in _windows(counted):
        progress(ProgressEvent("agreement", done, len(counted)))
        int4_grid, wanted = _window_agreement(forward, window, num_layers=num_layers)
        grid += int4_grid
        if draft is not None and draft_grid is not None:
            draft_grid += _draft_agreement(draft, window, wanted)
    sensitivity = _sensitivity(forward, tokens[:SENSITIVITY_TOKENS], num_layers=num_layers, progress=progress)
    thresholds = find_thresholds(grid, draft=draft_grid, costs=StepCosts())
    return Calibration(
        int4=grid,
        draft=draft_grid,
        theta_low_bits=thresholds.theta_low_bits,
        theta_high_bits=thresholds.theta_high_bits,
        layer_order=layer_order(sensitivity),
        sensitivity=sensitivity,
        text=text_name,
    )


def _windows(tokens: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    for start in range(0, len(tokens), WINDOW_TOKENS):
        yield start, tokens[start : start + WINDOW_TOKENS]


def _window_agreement(
    forward: Forward, window: Sequence[int], *, num_layers: int
) -> tuple[AgreementGrid, npt.NDArray[np.int64]]:
    """Count one window, a draft's worth of rows at a time; return FP16's choices [T] too."""
    fp16 = Plan.uniform(Precision.FP16, num_layers=num_layers)
    int4 = Plan.uniform(Precision.INT4, num_layers=num_layers)
    grid = AgreementGrid()
    choices: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(window), DRAFT_ROWS):
        rows = window[start : start + DRAFT_ROWS]
        drafted = row_statistics(forward(rows, start, int4))
        choices.append(forward(rows, start, fp16).argmax(-1))
        grid += AgreementGrid.count(drafted.entropy_bits, drafted.margin, drafted.argmax == choices[-1])
    return grid, np.concatenate(choices)


def _draft_agreement(draft: DraftPasses, window: Sequence[int], wanted: npt.NDArray[np.int64]) -> AgreementGrid:
    """Count how often a draft model's choice is FP16's ``wanted`` [T], given the same text."""
    plan = Plan.uniform(Precision.INT4, num_layers=draft.num_layers)
    grid = AgreementGrid()
    for start in range(0, len(window), DRAFT_ROWS):
        rows = row_statistics(draft.forward(window[start : start + DRAFT_ROWS], start, plan))
        same = rows.argmax == wanted[start : start + len(rows.argmax)]
        grid += AgreementGrid.count(rows.entropy_bits, rows.margin, same)
    return grid


def _sensitivity(forward: Forward, tokens: Sequence[int], *, num_layers: int, progress: Progress) -> tuple[float, ...]:
    """Return for each layer alone in INT4 the mean KL divergence in bits from FP16's distribution."""
    reference = _log_probabilities(forward, tokens, Plan.uniform(Precision.FP16, num_layers=num_layers))
    divergences: list[float] = []
    for layer in range(num_layers):
        progress(ProgressEvent("sensitivity", layer, num_layers, f"layer {layer}"))
        changed = _log_probabilities(forward, tokens, Plan.with_int4_layers([layer], num_layers=num_layers))
        divergences.append(_mean_divergence_bits(reference, changed))
    progress(ProgressEvent("sensitivity", num_layers, num_layers))
    return tuple(divergences)


def _log_probabilities(forward: Forward, tokens: Sequence[int], plan: Plan) -> list[npt.NDArray[np.float32]]:
    """Return log2 probabilities as pieces of up to 64 rows [R, V], teacher-forced."""
    pieces: list[npt.NDArray[np.float32]] = []
    for start in range(0, len(tokens), 64):
        logits = forward(tokens[start : start + 64], start, plan)
        shifted = logits - logits.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
        pieces.append(shifted / np.float32(np.log(2.0)))
    return pieces


def _mean_divergence_bits(
    reference: Sequence[npt.NDArray[np.float32]], changed: Sequence[npt.NDArray[np.float32]]
) -> float:
    """Return the mean over rows of sum p (log2 p - log2 q)."""
    sums = [np.sum(np.exp2(p) * (p - q), axis=-1) for p, q in zip(reference, changed, strict=True)]
    return float(np.mean(np.concatenate(sums)))
