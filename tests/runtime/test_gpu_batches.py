"""Batches on a GPU: sixteen drafted texts together are the bits each has alone, with whole rounds in CUDA graphs.

Weights are random at the shapes of an 8B model, a few layers deep; ``scripts/test_gpu`` runs this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.config import GenerationConfig
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.session import Session

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

CONTEXT, BATCH = 512, 16
RANDOM = np.random.default_rng(2)
PROMPTS = [[int(token) for token in RANDOM.integers(0, 26, 5 + 7 * index)] for index in range(BATCH)]
LIMITS = [20 + 5 * index for index in range(BATCH)]
CONFIGS = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in LIMITS]


@pytest.fixture(scope="module")
def sessions(
    load_script: Callable[[str], ModuleType], gpu_models: ModuleType, fake_text: ModuleType
) -> Iterator[tuple[Session, Session]]:
    """Return a session for one sequence and one for sixteen over the same pair."""
    synthetic, common = load_script("synthetic_weights"), {"context_tokens": CONTEXT}
    engines: list[tuple[TorchEngine, TorchEngine]] = []
    for seed, config in enumerate((gpu_models.target_config(synthetic), gpu_models.draft_config(synthetic))):
        weights, one = gpu_models.draw(synthetic, config, **common, seed=seed)
        engines.append((one, gpu_models.another(weights, config, **common, sequences=BATCH)))
    made = [gpu_models.session_on(*pair, fake_text.letters()) for pair in zip(*engines, strict=True)]
    yield made[0], made[1]
    for session in made:
        session.close()


@pytest.fixture(scope="module")
def plain(sessions: tuple[Session, Session]) -> list[tuple[int, ...]]:
    """Return every prompt's FP16 tokens alone."""
    return [
        sessions[0].generate(prompt, config, mode="fp16").tokens
        for prompt, config in zip(PROMPTS, CONFIGS, strict=True)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fp16"},
        {"drafter": "self", "draft_length": 1},
        {"drafter": "self", "draft_length": 3},
        {"drafter": "self", "draft_length": 7},
        {"drafter": "model", "draft_length": 5},
        {"drafter": "model"},
        {"drafter": "self"},
    ],
    ids=str,
)
def test_sixteen_texts_are_those_alone(
    sessions: tuple[Session, Session], plain: list[tuple[int, ...]], settings: dict[str, Any]
) -> None:
    """Sixteen lengths, ends and acceptances: run, captured and replayed, in slots that come free."""
    for turn in range(3):
        batch = sessions[1].generate(PROMPTS, CONFIGS, **settings)
        for index, (reply, expected) in enumerate(zip(batch, plain, strict=True)):
            assert reply.tokens == expected, f"sequence {index}, turn {turn}, caps {batch.stats.caps}"
        assert not any("graphs" in note or "one after another" in note for note in batch.stats.fallbacks)
    slots = [found.slots for found in batch.rounds]
    assert slots == sorted(slots, reverse=True)
    assert {16, 8, 4} <= set(slots)


def test_self_drafts_are_accepted(sessions: tuple[Session, Session]) -> None:
    """Drafting works in a batch as it does alone: INT4 of the same weights agrees often."""
    one = [sessions[0].generate(p, c, drafter="self", draft_length=3) for p, c in zip(PROMPTS, CONFIGS, strict=True)]
    batch = sessions[1].generate(PROMPTS, CONFIGS, drafter="self", draft_length=3)
    alone = sum(reply.stats.accepted for reply in one) / sum(reply.stats.drafted for reply in one)
    assert batch.stats.acceptance_rate is not None
    print(f"acceptance {batch.stats.acceptance_rate:.3f}, alone {alone:.3f}")  # noqa: T201, shown on failure
    assert batch.stats.acceptance_rate == pytest.approx(alone, abs=0.05)


def test_seeded_samples_are_those_alone(sessions: tuple[Session, Session]) -> None:
    """Noise belongs to a position, so company changes no sample."""
    configs = [replace(config, max_new_tokens=24) for config in CONFIGS]
    settings: dict[str, Any] = {"drafter": "self", "draft_length": 3, "temperature": 0.8, "seed": 9}
    expected = [
        sessions[0].generate(prompt, config, mode="fp16", temperature=0.8, seed=9).tokens
        for prompt, config in zip(PROMPTS, configs, strict=True)
    ]
    assert [reply.tokens for reply in sessions[1].generate(PROMPTS, configs, **settings)] == expected


def test_rounds_without_graphs_are_the_same(
    sessions: tuple[Session, Session], plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager rounds give the same tokens."""
    monkeypatch.setattr(sessions[1]._engine.graphs, "capture", None)  # type: ignore[attr-defined]
    sessions[1]._engine.graphs.clear()  # type: ignore[attr-defined]
    batch = sessions[1].generate(PROMPTS, CONFIGS, drafter="model", draft_length=3)
    assert [reply.tokens for reply in batch] == plain
