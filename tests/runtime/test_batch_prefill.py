"""Prompts that wait at the same time: one pass for all where that takes no more rows, and the texts they have alone."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.config import GenerationConfig
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.batch_prefill import has_fewer_rows_together, prefill_rows
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.session import Session

texts = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("batch_texts.py"))))
PROMPTS, same = texts.PROMPTS, texts.same
PLAN = Plan.uniform(Precision.FP16, num_layers=1)


@dataclass
class CountingEngine:
    """Counts rows, those that fill a pass up too."""

    max_rows: int
    rows: list[int] = field(default_factory=list)

    @property
    def info(self) -> CountingEngine:
        """Return its limits."""
        return self

    def forward_batch(
        self, tokens: Sequence[Sequence[int]], *, positions: Sequence[int], plan: Plan, width: int
    ) -> Any:
        """Run nothing."""
        self.rows.append(len(tokens) * max(width, *map(len, tokens)))

    def count(self, lengths: Sequence[int]) -> int:
        """Return what prompts of these lengths take in passes over so many slots."""
        self.rows.clear()
        for _ in prefill_rows(self, [[0] * length for length in lengths], PLAN):
            pass
        return sum(self.rows)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=2, max_size=8),
    slots=st.sampled_from([8, 16, 64]),
    max_rows=st.sampled_from([16, 100, 128, 512]),
)
def test_together_is_what_takes_no_more_rows(lengths: list[int], slots: int, max_rows: int) -> None:
    """The rows of real passes decide, over all slots and one by one."""
    engine = CountingEngine(max_rows)
    together = engine.count([*lengths, *[0] * (slots - len(lengths))])
    alone = sum(engine.count([length]) for length in lengths)
    assert has_fewer_rows_together(engine, lengths, slots=slots) is (together <= alone)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([100] * 64, True), ([100] * 52, True), ([100] * 51, False), ([100] * 63 + [300], False), ([5], False)],
)
def test_a_wave_of_prompts_in_64_slots(lengths: list[int], expected: bool) -> None:
    """Many of one length run together; few, or one that is much longer than the others, do not."""
    assert has_fewer_rows_together(CountingEngine(512), lengths, slots=64) is expected


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fp16"},
        {"mode": "gated"},
        {"drafter": "self", "draft_length": 2},
        {"drafter": "model", "draft_length": 3},
        {"drafter": "model"},
        {"drafter": "model", "draft_length": 2, "temperature": 0.9, "seed": 5},
    ],
    ids=str,
)
def test_prompts_that_wait_together_join_together(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Five texts end in one round, or four beside a fifth: each text after them is the one its prompt has alone."""
    one, five = sessions
    real, target = TorchEngine.forward_batch, five.batches.engine
    passes: list[tuple[int, ...]] = []

    def forward_batch(engine: TorchEngine, tokens: Sequence[Sequence[int]], **others: Any) -> Any:
        if engine is target and max(map(len, tokens)) > 8:
            passes.append(tuple(map(len, tokens)))
        return real(engine, tokens, **others)

    prompts = [list(range(3 + index, 23 + index - index % 3)) for index in range(15)]
    limits = [1] * 5 + [9, 2, 2, 2, 2] + [12] * 5
    configs = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in limits]
    alone = [one.generate(prompt, config, **settings) for prompt, config in zip(prompts, configs, strict=True)]
    with monkeypatch.context() as patched:
        patched.setattr(TorchEngine, "forward_batch", forward_batch)
        batch = five.generate(prompts, configs, **settings)
    same(batch, alone)
    lengths = tuple(map(len, prompts))
    assert passes == [lengths[:5], lengths[5:10], (0, *lengths[10:14]), lengths[14:]]
    assert batch.stats.at_once == 5
    assert batch.stats.new_tokens == sum(limits)
    assert batch.stats.prefill_s > 0
