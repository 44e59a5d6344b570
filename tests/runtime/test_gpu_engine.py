"""What only a GPU can show of the torch engine: the same bits in any pass, with graphs and without, in a batch of 64.

Weights are random at the shapes of an 8B model, a few layers deep; ``scripts/test_gpu`` runs this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_torch import MAX_INT4_ROWS, TorchEngine
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import cuda_allowance_bytes, form_of
from edgeprec.runtime.torch_opening import build_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LAYERS, VOCABULARY, CONTEXT, BATCH = 4, 32_000, 1024, 64
FP16 = Plan.uniform(Precision.FP16, num_layers=LAYERS)
INT4 = Plan.uniform(Precision.INT4, num_layers=LAYERS)
MIXED = Plan((True, False, True, True, False))
TEXT = [int(token) for token in np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT)]
ROWS = [*range(1, 17), 33, 64]


@pytest.fixture(scope="module")
def synthetic(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """Import ``scripts/synthetic_weights.py``."""
    return load_script("synthetic_weights")


class Rig(NamedTuple):
    """One set of weights in three engines: with graphs, without, and for 64 sequences."""

    graphs: TorchEngine
    eager: TorchEngine
    batch: TorchEngine
    draft: TorchEngine


@pytest.fixture(scope="module")
def rig(gpu_models: ModuleType, synthetic: ModuleType) -> Iterator[Rig]:
    """Load a target of 8B shapes and a draft model of 1B shapes."""
    config, common = gpu_models.target_config(synthetic, num_layers=LAYERS), {"context_tokens": CONTEXT}
    weights, graphs = gpu_models.draw(synthetic, config, **common)
    _, draft = gpu_models.draw(synthetic, gpu_models.draft_config(synthetic), **common, seed=1)
    eager = gpu_models.another(weights, config, **common, use_graphs=False)
    batch = gpu_models.another(weights, config, **common, sequences=BATCH)
    graphs.warm_up(int4_rows=MAX_INT4_ROWS)
    draft.warm_up()
    yield Rig(graphs, eager, batch, draft)
    for engine in (graphs, eager, batch, draft):
        engine.close()


def in_pieces(engine: TorchEngine, end: int, size: int, plan: Plan = FP16, start: int = 0) -> Any:
    """Run TEXT[start:end] in passes of ``size`` rows and return all logits."""
    pieces = []
    for position in range(start, end, size):
        rows = TEXT[position : min(position + size, end)]
        pieces.append(engine.forward(rows, position=position, plan=plan).logits.copy())
    return np.concatenate(pieces)


def test_warming_up_leaves_nothing_to_capture(rig: Rig) -> None:
    """What a text runs first is a replay: a capture in the middle of one would take longer than the tokens it saves."""
    before = rig.graphs.first_passes
    for plan, most in ((FP16, 16), (INT4, MAX_INT4_ROWS)):
        for rows in range(1, most + 1):
            rig.graphs.forward(TEXT[:rows], position=0, plan=plan)
    for rows in (17, 40, 64):  # of prompts
        step = rig.graphs.forward(TEXT[:rows], position=0, plan=FP16)
        assert step.facts(-1).argmax == step.logits[rows - 1].argmax()
    assert rig.graphs.first_passes == before
    rig.graphs.forward(TEXT[: MAX_INT4_ROWS + 1], position=0, plan=INT4)
    assert rig.graphs.first_passes == before + 1


def test_logits_are_the_cpus(rig: Rig, synthetic: ModuleType) -> None:
    """A small model of the same draws on a CPU in float32: FP16 differs by rounding, in every plan."""
    config = replace(synthetic.LLAMA_1B, hidden_size=512, num_heads=16, head_dim=32, intermediate_size=1408)
    config = replace(config, num_layers=LAYERS, vocab_size=1000)
    results: list[Any] = []
    for place in ("cpu", "cuda"):
        device = torch.device(place, 0) if place == "cuda" else torch.device(place)
        made = form_of(config, device=device, group_size=128, has_zeros=False, context_tokens=300)
        source = synthetic.SyntheticSource(config, torch.device("cpu"))
        _, engine = build_engine(source, made, Arena(made.arena_bytes, device))
        text = [token % 1000 for token in TEXT[:192]]
        results.append([])
        for plan in (FP16, INT4, MIXED):
            for start in range(0, 192, 16 if plan is not FP16 else 64):
                rows = text[start : start + (16 if plan is not FP16 else 64)]
                logits = engine.forward(rows, position=start, plan=plan).logits
            results[-1].append(logits.copy())
        engine.close()
    for cpu, gpu in zip(*results, strict=True):
        difference = np.abs(cpu - gpu)
        print(f"max difference {difference.max():.4f}, mean {difference.mean():.5f}")  # noqa: T201, shown on failure
        assert difference.max() < 0.02 * np.abs(cpu).max()


def test_rows_have_the_same_bits_in_any_pass(rig: Rig) -> None:
    """1 to 16 rows, prefill's 64 and one between, across a split of attention: run, captured and replayed."""
    whole = in_pieces(rig.graphs, 192, 64)
    for size in ROWS:
        for _ in range(3):  # an ordinary run, a capture, a replay
            again = in_pieces(rig.graphs, 192, size, start=96)
            assert np.array_equal(again, whole[96:]), f"{size} rows"
    assert rig.graphs.info.fallbacks == ()
    assert rig.graphs.graph_report.captured > len(ROWS)


def test_graphs_change_no_bit(rig: Rig) -> None:
    """The engine without graphs gives the same logits, in FP16, INT4 and a mixed plan."""
    for plan in (FP16, INT4, MIXED):
        for engine in (rig.graphs, rig.eager):
            in_pieces(engine, 128, 64)
        for size in (1, 1, 1, 5, 16):
            pair = [in_pieces(engine, 144, size, plan, start=128) for engine in (rig.graphs, rig.eager)]
            assert np.array_equal(*pair), f"{plan}, {size} rows"
    assert rig.eager.graph_report.captured == 0


def test_drafts_are_single_steps(rig: Rig) -> None:
    """A chunk in one graph gives the tokens, entropies and margins of single INT4 steps, again and again."""
    for count in (1, 3, 8):
        for _ in range(3):
            in_pieces(rig.graphs, 100, 64)
            drafted = rig.graphs.draft(TEXT[100:102], position=100, plan=INT4, count=count, vocabulary=VOCABULARY)
        in_pieces(rig.eager, 100, 64)
        fed, position, expected = TEXT[100:102], 100, []
        for _ in range(count):
            expected.append(rig.eager.forward(fed, position=position, plan=INT4).facts(-1))
            position += len(fed)
            fed = [expected[-1].argmax]
        assert list(drafted) == expected


def test_rollback_leaves_nothing_behind(rig: Rig) -> None:
    """INT4 drafts and wrong tokens beyond a position change no bit of FP16's rows."""
    whole = in_pieces(rig.graphs, 80, 16)
    rig.graphs.draft(TEXT[60:61], position=60, plan=INT4, count=8, vocabulary=VOCABULARY)
    rig.graphs.forward([7] * 12, position=62, plan=FP16)
    assert np.array_equal(in_pieces(rig.graphs, 80, 4, start=60), whole[60:])


def test_batch_of_64_has_the_bits_of_one(rig: Rig) -> None:
    """Every sequence at a position of its own, some left out, one and four rows at a time."""
    starts = [(7 * index) % 40 for index in range(BATCH)]
    texts = [TEXT[start : start + 150 - start] for start in starts]
    for position in range(0, 160, 4):
        rows = [text[position : position + 4] if position + 4 <= len(text) - 5 else [] for text in texts]
        if any(rows):
            rig.batch.forward_batch(rows, positions=[position] * BATCH, plan=FP16)
    done = [next(p for p in range(0, 200, 4) if p + 4 > len(text) - 5) for text in texts]
    for rows in (1, 1, 1, 4):
        step = rig.batch.forward_batch(
            [text[at : at + rows] for text, at in zip(texts, done, strict=True)], positions=done, plan=FP16
        ).step
        logits = step.logits.reshape(BATCH, rows, -1)
        for index in range(0, BATCH, 9):
            text, at = texts[index], done[index]
            for position in range(0, at, 64):
                rig.graphs.forward(text[position : min(position + 64, at)], position=position, plan=FP16)
            alone = rig.graphs.forward(text[at : at + rows], position=at, plan=FP16).logits
            assert np.array_equal(alone, logits[index]), f"sequence {index}, {rows} rows"


def test_exact_is_fp16(rig: Rig, gpu_models: ModuleType, fake_text: ModuleType) -> None:
    """Twenty prompts of random ids, whoever drafts and however far: plain FP16's tokens."""
    session = gpu_models.session_on(rig.graphs, rig.draft, fake_text.letters())
    common: dict[str, Any] = {"max_new_tokens": 64, "ignore_eos": True}
    accepted = 0
    for index in range(20):
        prompt = [token % 26 for token in TEXT[index * 30 : index * 30 + 25]]
        plain = session.generate(prompt, mode="fp16", **common)
        settings = [("self", None), ("self", 3), ("self", 7), ("model", 5), ("ngram", None)][index % 5]
        reply = session.generate(prompt, mode="exact", drafter=settings[0], draft_length=settings[1], **common)
        assert reply.tokens == plain.tokens, f"prompt {index}, {settings}"
        assert reply.stats.fallbacks == () or "graphs" not in " ".join(reply.stats.fallbacks)
        accepted += reply.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("length", [4, 8, None])
def test_three_levels_are_fp16(rig: Rig, gpu_models: ModuleType, fake_text: ModuleType, length: int | None) -> None:
    """INT4 passes of several rows write the cache, FP16 rewrites it: its tokens, greedy and seeded, gated or not."""
    accepted = 0
    for draft in (rig.draft, rig.eager):  # the target's own weights with another cache: a draft model that is right
        session = gpu_models.session_on(rig.graphs, draft, fake_text.letters())
        for index in range(6):
            prompt = [token % 26 for token in TEXT[index * 30 : index * 30 + 25]]
            common: dict[str, Any] = {"max_new_tokens": 64, "ignore_eos": True, "seed": index}
            common["temperature"] = 0.8 if index % 3 == 2 else 0.0
            plain = session.generate(prompt, mode="fp16", **common)
            asked: dict[str, Any] = {"three_level": True, "draft_length": length, "gated_layers": (None, 2)[index % 2]}
            reply = session.generate(prompt, **asked, **common)
            assert reply.tokens == plain.tokens, f"prompt {index}"
            found = reply.stats.three_level
            assert found is not None
            assert found.int4_passes > 0 or length is None
            accepted += found.model_accepted
    assert accepted > 0 or length is None


@pytest.mark.alone
def test_memory_plan_is_what_the_driver_reports(gpu_models: ModuleType, synthetic: ModuleType) -> None:
    """Arena and allowance against free memory before and after, within 5 %."""
    config = gpu_models.target_config(synthetic, num_layers=8)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    _, engine = gpu_models.draw(synthetic, config, context_tokens=CONTEXT)
    torch.cuda.empty_cache()
    engine.warm_up()
    in_pieces(engine, 256, 64, Plan.uniform(Precision.FP16, num_layers=config.num_layers))
    torch.cuda.synchronize()
    after, _ = torch.cuda.mem_get_info()
    made = gpu_models.form(config, context_tokens=CONTEXT)
    planned = made.arena_bytes + made.scratch_bytes + cuda_allowance_bytes()
    print(f"planned {planned / 2**20:.0f} MiB, driver {(before - after) / 2**20:.0f} MiB")  # noqa: T201, shown on failure
    assert abs(before - after - planned) < 0.05 * planned
    engine.close()
