"""Measure an exported pair on a text: where INT4 agrees with FP16, and which layers are sensitive.

The passes come through ``Forward``: this package runs no engine of its own. Agreement is counted as drafting meets it:
a few INT4 rows on top of a cache that FP16 wrote, which FP16 then writes again. Nothing is timed here: the same export
gives the same bytes, and costs are the running device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import AgreementGrid, Calibration, StepCosts, layer_order
from edgeprec.entropy import row_statistics
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.precision import Plan, Precision
from edgeprec.thresholds import find_thresholds

__all__ = ["Forward", "ModelPasses", "calibrate"]

Forward = Callable[[Sequence[int], int, Plan], npt.NDArray[np.float32]]
"""Run tokens [T] at a position with a plan and return logits [T, V]; valid until the next call."""

DRAFT_ROWS = 8
AGREEMENT_TOKENS = 2048
SENSITIVITY_TOKENS = 384
WINDOW_TOKENS = 512
PIECE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ModelPasses:
    """How to run a model, how many layers it has and how long its context may be."""

    forward: Forward
    num_layers: int
    max_positions: int

    def plan(self, precision: Precision) -> Plan:
        """Return the plan that runs everything in one precision."""
        return Plan.uniform(precision, num_layers=self.num_layers)


def calibrate(
    target: ModelPasses,
    tokens: Sequence[int],
    *,
    text_name: str,
    progress: Progress,
    draft: ModelPasses | None = None,
) -> Calibration:
    """Return what ``calibration.json`` holds. ``tokens`` [T] are those of the calibration text.

    ``draft`` None = the target's INT4 variant drafts.
    """
    counted = tokens[:AGREEMENT_TOKENS]
    window_tokens = min(WINDOW_TOKENS, *(passes.max_positions for passes in (target, draft) if passes is not None))
    grid = AgreementGrid()
    draft_grid = None if draft is None else AgreementGrid()
    for done in range(0, len(counted), window_tokens):
        progress(ProgressEvent("agreement", done, len(counted)))
        window = counted[done : done + window_tokens]
        int4_grid, wanted = _window_agreement(target, window)
        grid += int4_grid
        if draft is not None and draft_grid is not None:
            draft_grid += _draft_agreement(draft, window, wanted)
    sensitivity = _sensitivity(target, tokens[:SENSITIVITY_TOKENS], progress=progress)
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


def _window_agreement(target: ModelPasses, window: Sequence[int]) -> tuple[AgreementGrid, npt.NDArray[np.int64]]:
    """Count one window, a draft's worth of rows at a time; return FP16's choices [T] too."""
    fp16, int4 = target.plan(Precision.FP16), target.plan(Precision.INT4)
    grid = AgreementGrid()
    choices: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(window), DRAFT_ROWS):
        rows = window[start : start + DRAFT_ROWS]
        drafted = row_statistics(target.forward(rows, start, int4))
        choices.append(target.forward(rows, start, fp16).argmax(-1))
        grid += AgreementGrid.count(drafted.entropy_bits, drafted.margin, drafted.argmax == choices[-1])
    return grid, np.concatenate(choices)


def _draft_agreement(draft: ModelPasses, window: Sequence[int], wanted: npt.NDArray[np.int64]) -> AgreementGrid:
    """Count how often a draft model's choice is FP16's ``wanted`` [T], given the same text."""
    plan = draft.plan(Precision.INT4)
    grid = AgreementGrid()
    for start in range(0, len(window), DRAFT_ROWS):
        rows = row_statistics(draft.forward(window[start : start + DRAFT_ROWS], start, plan))
        same = rows.argmax == wanted[start : start + len(rows.argmax)]
        grid += AgreementGrid.count(rows.entropy_bits, rows.margin, same)
    return grid


def _sensitivity(target: ModelPasses, tokens: Sequence[int], *, progress: Progress) -> tuple[float, ...]:
    """Return for each layer alone in INT4 the mean KL divergence in bits from FP16's distribution.

    The text is cut into pieces that begin at position 0, so that one cache serves every plan.
    """
    layers = target.num_layers
    sums = np.zeros(layers)
    size = min(PIECE_TOKENS, target.max_positions)
    pieces = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    for done, piece in enumerate(pieces):
        reference = _log2_probabilities(target.forward(piece, 0, target.plan(Precision.FP16)))
        weights = np.exp2(reference)
        for layer in range(layers):
            progress(ProgressEvent("sensitivity", done * layers + layer, len(pieces) * layers))
            plan = Plan.with_int4_layers([layer], num_layers=layers)
            changed = _log2_probabilities(target.forward(piece, 0, plan))
            sums[layer] += float(np.sum(weights * (reference - changed), dtype=np.float64))
    progress(ProgressEvent("sensitivity", len(pieces) * layers, len(pieces) * layers))
    return tuple(float(value) for value in sums / len(tokens))


def _log2_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return log2 of the softmax of each row [T, V]."""
    shifted: npt.NDArray[np.float32] = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    shifted *= np.float32(1.0 / np.log(2.0))
    return shifted
