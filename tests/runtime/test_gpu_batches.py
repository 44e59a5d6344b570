"""Batches on a GPU: sixteen drafted texts together are the bits each has alone, with whole rounds in CUDA graphs.

Weights are random at the shapes of an 8B model, a few layers deep; ``scripts/test_gpu`` runs this file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.architecture import ModelConfig
from edgeprec.config import GenerationConfig
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.session import Session
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import ModelForm, form_of
from edgeprec.runtime.torch_opening import build_engine, engine_of
from edgeprec.runtime.torch_weights import DecoderWeights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LAYERS, DRAFT_LAYERS, VOCABULARY, CONTEXT, BATCH = 4, 2, 32_000, 512, 16
RANDOM = np.random.default_rng(2)
PROMPTS = [[int(token) for token in RANDOM.integers(0, 26, 5 + 7 * index)] for index in range(BATCH)]
LIMITS = [20 + 5 * index for index in range(BATCH)]
CONFIGS = [GenerationConfig(max_new_tokens=limit, ignore_eos=True) for limit in LIMITS]


def load_script(name: str) -> ModuleType:
    """Import a file of ``scripts`` once."""
    if name not in sys.modules:
        found = spec_from_file_location(name, Path(__file__).parents[2] / "scripts" / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def form(config: ModelConfig, sequences: int) -> ModelForm:
    """Return what a model takes on the GPU."""
    return form_of(
        config,
        device=torch.device("cuda", 0),
        group_size=128,
        has_zeros=False,
        context_tokens=CONTEXT,
        sequences=sequences,
    )


def engines(config: ModelConfig, seed: int) -> tuple[TorchEngine, TorchEngine]:
    """Draw a model on the GPU and return an engine for one sequence and one for sixteen, on the same weights."""
    device, made = torch.device("cuda", 0), form(config, 1)
    source = load_script("synthetic_weights").SyntheticSource(config, device, seed=seed)
    weights, one = build_engine(source, made, Arena(made.arena_bytes, device))
    return one, slots_on(weights, config)


def slots_on(weights: DecoderWeights, config: ModelConfig) -> TorchEngine:
    """Return an engine with sixteen slots on weights that are loaded."""
    made = form(config, BATCH)
    arena = Arena(made.space.cache_bytes + made.space.buffer_bytes, torch.device("cuda", 0))
    return engine_of(weights, made, arena)


@pytest.fixture(scope="module")
def sessions(fake_text: ModuleType) -> Iterator[tuple[Session, Session]]:
    """Return a session for one sequence and one for sixteen over the same pair."""
    synthetic = load_script("synthetic_weights")
    targets = engines(replace(synthetic.LLAMA_8B, num_layers=LAYERS, vocab_size=VOCABULARY), 0)
    drafts = engines(replace(synthetic.LLAMA_1B, num_layers=DRAFT_LAYERS, vocab_size=VOCABULARY), 1)
    made = [
        Session(
            engine=target,
            tokenizer=fake_text.letters(),
            target_bits=WeightBits(weights=(1,) * (LAYERS + 1), int4_bits=4.5),
            draft_engine=draft,
            draft_bits=WeightBits(weights=(1,) * (DRAFT_LAYERS + 1), int4_bits=4.5),
        )
        for target, draft in zip(targets, drafts, strict=True)
    ]
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
