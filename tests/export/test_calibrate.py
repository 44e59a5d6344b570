"""Calibration counts what drafting will meet: INT4's own replies, on FP16's cache, judged by FP16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgeprec.export.calibrate import DRAFT_ROWS, REPLY_TOKENS, ModelOnCall, ModelPasses, calibrate
from edgeprec.export.calibration_texts import CalibrationTexts
from edgeprec.export.progress import ProgressEvent, silent
from edgeprec.precision import Plan, Precision

VOCABULARY = 50
LAYERS = 3
PROMPT = (11, 12, 13)
TEXT = tuple(range(10, 40)) * 20
OPEN: list[object] = []


@dataclass
class Counting:
    """A model that counts up by one; in INT4 it errs behind the ``wrong`` ids, by one more and with little margin.

    It remembers what each place of its cache holds and in which precision it was written.
    """

    wrong: frozenset[int] = frozenset()
    vocab_size: int = VOCABULARY
    max_positions: int = 512
    cache: list[tuple[int, bool]] = field(default_factory=list)
    passes: list[tuple[int, int, bool]] = field(default_factory=list)  # position, rows, is FP16

    def forward(self, tokens: Sequence[int], position: int, plan: Plan) -> npt.NDArray[np.float32]:
        """Return logits; the cache before ``position`` must be whole."""
        assert position <= len(self.cache), "a gap in the cache"
        assert position + len(tokens) <= self.max_positions
        is_fp16 = not any(plan.gates)
        self.cache[position:] = [(token, is_fp16) for token in tokens]
        self.passes.append((position, len(tokens), is_fp16))
        logits = np.zeros((len(tokens), self.vocab_size), np.float32)
        for row, token in enumerate(tokens):
            errs = not is_fp16 and token in self.wrong
            logits[row, (token + 1 + errs) % self.vocab_size] = 0.2 if errs else 20.0
        return logits

    def on_call(self) -> ModelOnCall:
        """Return it as calibration wants it; nothing else may be open while it is."""

        @contextmanager
        def load() -> Iterator[ModelPasses]:
            assert not OPEN, "two models in memory"
            OPEN.append(self)
            yield ModelPasses(self.forward, LAYERS)
            OPEN.remove(self)

        return ModelOnCall(load, self.max_positions, self.vocab_size)


def run(target: Counting, *, draft: Counting | None = None, **texts: Any) -> Any:
    """Calibrate on one prompt unless told otherwise."""
    known = CalibrationTexts(**({"tokens": TEXT, "prompts": (PROMPT,)} | texts))
    passes = None if draft is None else draft.on_call()
    return calibrate(target.on_call(), known, text_name="test", progress=silent, draft=passes)


def test_every_token_of_the_reply_is_judged_once() -> None:
    """INT4 that is right agrees in all of its tokens; nothing of the prompt is counted."""
    found = run(Counting())
    assert (found.int4.tokens, found.int4.agreement) == (REPLY_TOKENS, 1.0)
    assert found.draft is None


def test_flips_are_counted_where_int4_was_unsure() -> None:
    """INT4 goes on from its own mistake; each one is a flip in the cell of its entropy and margin."""
    found = run(Counting(wrong=frozenset({25, 35})))
    flips = [trials - agreed for trials, agreed in zip(found.int4.trials, found.int4.agreed, strict=True)]
    assert sum(flips) == 2
    (cell,) = (index for index, count in enumerate(flips) if count)
    assert cell % 4 == 0, "the smallest margins"
    assert cell // 4 == 7, "the largest entropies"


def test_int4_reads_a_cache_that_fp16_wrote() -> None:
    """Before each draft everything but its own rows is FP16's, and FP16 reads every draft behind it."""
    target = Counting()
    run(target)
    before_sensitivity = target.passes[: 1 + (REPLY_TOKENS // DRAFT_ROWS) * (DRAFT_ROWS + 1)]
    assert before_sensitivity[0] == (0, len(PROMPT) - 1, True)
    position = len(PROMPT) - 1
    for start in range(1, len(before_sensitivity), DRAFT_ROWS + 1):
        draft = before_sensitivity[start : start + DRAFT_ROWS]
        assert draft == [(position + row, 1, False) for row in range(DRAFT_ROWS)]
        assert before_sensitivity[start + DRAFT_ROWS] == (position, DRAFT_ROWS, True)
        position += DRAFT_ROWS


def test_a_reply_ends_with_its_end_token() -> None:
    """What a model would never be asked for is not counted."""
    found = run(Counting(), end_ids=frozenset({18}))
    assert found.int4.tokens == 18 - PROMPT[-1]


def test_a_short_context_is_filled_and_not_overrun() -> None:
    """Half of it is for the prompt; the reply takes the rest."""
    found = run(Counting(max_positions=32), prompts=(tuple(range(40)),))
    assert found.int4.tokens == 16


def test_a_prompt_of_one_token_has_nothing_to_read_first() -> None:
    """The draft begins at position 0."""
    target = Counting()
    assert run(target, prompts=((5,),)).int4.tokens == REPLY_TOKENS
    assert target.passes[0] == (0, 1, False)


def test_a_draft_is_judged_on_the_same_replies() -> None:
    """Its choices are held against FP16's at every place of the reply, its own errors only."""
    found = run(Counting(), draft=Counting(wrong=frozenset({25, 26, 27})))
    assert found.int4.agreement == 1.0
    assert found.draft is not None
    assert found.draft.tokens == REPLY_TOKENS
    assert found.draft.tokens - sum(found.draft.agreed) == 3


def test_rows_that_no_draft_knows_are_never_chosen() -> None:
    """A target with more rows than its draft answers in what both know."""

    class Padded(Counting):
        def forward(self, tokens: Sequence[int], position: int, plan: Plan) -> npt.NDArray[np.float32]:
            logits = super().forward(tokens, position, plan)
            logits[:, 48:] = 99.0
            return logits

    draft = Counting(vocab_size=48)
    found = run(Padded(), draft=draft)
    assert found.int4.agreement == 1.0
    assert max(token for token, _ in draft.cache) < 48


def test_layers_are_ordered_by_what_they_cost() -> None:
    """Sensitivity is of the text, each layer alone in INT4."""

    class Layered(Counting):
        def forward(self, tokens: Sequence[int], position: int, plan: Plan) -> npt.NDArray[np.float32]:
            logits = super().forward(tokens, position, Plan.uniform(Precision.FP16, num_layers=LAYERS))
            for layer, gate in enumerate(plan.gates[:-1]):
                logits[:, layer] += 15.0 * gate * layer
            return logits

    found = run(Layered())
    assert found.layer_order == (2, 1, 0)
    assert found.sensitivity[0] == pytest.approx(0.0, abs=1e-6)


def test_progress_is_told() -> None:
    """Prompts first, then layers and pieces of the text."""
    told: list[ProgressEvent] = []
    texts = CalibrationTexts(tokens=TEXT, prompts=(PROMPT,) * 3)
    calibrate(Counting().on_call(), texts, text_name="test", progress=told.append)
    assert [event.done for event in told if event.stage == "agreement"] == [0, 1, 2, 3]
    assert told[-1].stage == "sensitivity"
    assert told[-1].done == told[-1].total
