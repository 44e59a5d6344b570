"""Measure an exported pair: where INT4 agrees with FP16 in texts of its own, and which layers are sensitive.

The passes come through ``Forward``: this package runs no engine of its own. Agreement is counted as drafting meets it:
INT4 answers the calibration prompts, a few tokens at a time on top of a cache that FP16 wrote, and FP16 then reads them
and writes its own entries. What INT4 says there is new to the quantizer, which has fitted itself to the texts it was
given: on those it agrees more often than it will on others. Nothing is timed here: the same export gives the same
bytes, and costs are the running device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeprec.calibration import AgreementGrid, Calibration, StepCosts, layer_order
from edgeprec.entropy import RowStatistics, row_statistics
from edgeprec.export.calibration_texts import CalibrationTexts
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.precision import Plan, Precision
from edgeprec.thresholds import find_thresholds

__all__ = ["Forward", "ModelOnCall", "ModelPasses", "calibrate"]

Forward = Callable[[Sequence[int], int, Plan], npt.NDArray[np.float32]]
"""Run tokens [T] at a position with a plan and return logits [T, V]; valid until the next call."""

DRAFT_ROWS = 8
REPLY_TOKENS = 48  # to each of the 40 prompts
SENSITIVITY_TOKENS = 96
PIECE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ModelPasses:
    """How to run a model, and how many layers it has."""

    forward: Forward
    num_layers: int

    def plan(self, precision: Precision) -> Plan:
        """Return the plan that runs everything in one precision."""
        return Plan.uniform(precision, num_layers=self.num_layers)


@dataclass(frozen=True, slots=True)
class ModelOnCall:
    """A model that is loaded while it is needed, how long its context may be and how many ids it has."""

    open: Callable[[], AbstractContextManager[ModelPasses]]
    max_positions: int
    vocab_size: int


def calibrate(
    target: ModelOnCall,
    texts: CalibrationTexts,
    *,
    text_name: str,
    progress: Progress,
    draft: ModelOnCall | None = None,
) -> Calibration:
    """Return what ``calibration.json`` holds.

    ``draft`` None = the target's INT4 variant drafts. Target and draft are never in memory together.
    """
    both = [model for model in (target, draft) if model is not None]
    place = _Place(
        context_tokens=min(model.max_positions for model in both),
        vocab_size=min(model.vocab_size for model in both),  # the target may have rows that stand for no token
        end_ids=texts.end_ids,
    )
    with target.open() as passes:
        answers = _answer_all(passes, texts.prompts, place, progress=progress)
        piece_tokens = min(PIECE_TOKENS, target.max_positions)
        sensitivity = _sensitivity(passes, texts.tokens[:SENSITIVITY_TOKENS], piece_tokens, progress=progress)
    grid = sum((answer.grid for answer in answers), AgreementGrid())
    draft_grid = None if draft is None else _draft_agreement(draft, answers)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a reply ends at the latest, the ids it may have and those that end it."""

    context_tokens: int
    vocab_size: int
    end_ids: Collection[int]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A prompt with INT4's reply, ids; FP16's choice [R] at each place of the reply, given all that stands before."""

    text: tuple[int, ...]
    choices: npt.NDArray[np.int64]
    grid: AgreementGrid


def _answer_all(
    target: ModelPasses, prompts: Sequence[Sequence[int]], place: _Place, *, progress: Progress
) -> list[_Answer]:
    answers = []
    for done, prompt in enumerate(prompts):
        progress(ProgressEvent("agreement", done, len(prompts)))
        answers.append(_answer(target, prompt[-(place.context_tokens // 2) :], place))
    progress(ProgressEvent("agreement", len(prompts), len(prompts)))
    return answers


def _answer(target: ModelPasses, prompt: Sequence[int], place: _Place) -> _Answer:
    """Let INT4 answer, greedy, a draft's worth of tokens at a time; FP16 reads each draft behind it."""
    fp16, int4 = target.plan(Precision.FP16), target.plan(Precision.INT4)
    text, grid = list(prompt), AgreementGrid()
    choices: list[npt.NDArray[np.int64]] = []
    _read(target, text[:-1], fp16)
    end = min(len(prompt) + REPLY_TOKENS, place.context_tokens)
    while len(text) < end and (len(text) == len(prompt) or text[-1] not in place.end_ids):
        start = len(text) - 1
        drafted: list[RowStatistics] = []
        while len(drafted) < DRAFT_ROWS and len(text) < end:
            logits = target.forward(text[-1:], len(text) - 1, int4)[:, : place.vocab_size]
            drafted.append(row_statistics(logits))
            text.append(int(drafted[-1].argmax[0]))
            if text[-1] in place.end_ids:
                break
        choices.append(target.forward(text[start:-1], start, fp16)[:, : place.vocab_size].argmax(-1))
        grid += AgreementGrid.count(
            [rows.entropy_bits[0] for rows in drafted],
            [rows.margin[0] for rows in drafted],
            choices[-1] == np.asarray(text[start + 1 :]),
        )
    return _Answer(tuple(text), np.concatenate(choices) if choices else np.empty(0, np.int64), grid)


def _read(passes: ModelPasses, tokens: Sequence[int], plan: Plan) -> None:
    """Fill the cache from position 0."""
    for start in range(0, len(tokens), PIECE_TOKENS):
        passes.forward(tokens[start : start + PIECE_TOKENS], start, plan)


def _draft_agreement(draft: ModelOnCall, answers: Sequence[_Answer]) -> AgreementGrid:
    """Count how often a draft model's choice is FP16's, given the same texts."""
    with draft.open() as passes:
        return sum((_judge_draft(passes, answer) for answer in answers), AgreementGrid())


def _judge_draft(draft: ModelPasses, answer: _Answer) -> AgreementGrid:
    plan, grid = draft.plan(Precision.INT4), AgreementGrid()
    first = len(answer.text) - 1 - len(answer.choices)  # the row that predicts the reply's first token
    _read(draft, answer.text[:first], plan)
    for start in range(0, len(answer.choices), DRAFT_ROWS):
        wanted = answer.choices[start : start + DRAFT_ROWS]
        tokens = answer.text[first + start : first + start + len(wanted)]
        rows = row_statistics(draft.forward(tokens, first + start, plan))
        grid += AgreementGrid.count(rows.entropy_bits, rows.margin, rows.argmax == wanted)
    return grid


def _sensitivity(
    target: ModelPasses, tokens: Sequence[int], piece_tokens: int, *, progress: Progress
) -> tuple[float, ...]:
    """Return for each layer alone in INT4 the mean KL divergence in bits from FP16's distribution.

    The text is cut into pieces that begin at position 0, so that one cache serves every plan.
    """
    layers = target.num_layers
    sums = np.zeros(layers)
    pieces = [tokens[start : start + piece_tokens] for start in range(0, len(tokens), piece_tokens)]
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
