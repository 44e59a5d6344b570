"""The torch engine on a CPU: ONNX Runtime's logits and tokens in every family, rows, rollback, drafts, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from edgeprec.bundle import Bundle
from edgeprec.errors import EngineError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import DraftingEngine, RowFacts
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.torch_opening import open_torch_pair

CONTEXT, LAYERS, VOCABULARY = 100, 3, 301
FP16 = Plan.uniform(Precision.FP16, num_layers=LAYERS)
INT4 = Plan.uniform(Precision.INT4, num_layers=LAYERS)
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3},
    "mistral": {"tied": False},
    "qwen2": {"num_kv_heads": 1},
    "qwen3": {"head_dim": 16, "tied": False},
}
Rows = npt.NDArray[np.float32]


class Pair(NamedTuple):
    """The same bundle in both engines; the torch one has room for three sequences."""

    bundle: Bundle
    torch: TorchEngine
    onnx: OnnxRuntimeEngine


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoints: ModuleType
) -> Iterator[Pair]:
    """Export a random model of a family and open it twice."""
    import edgeprec

    folder: Path = tmp_path_factory.mktemp(request.param)
    checkpoint = checkpoints.make_checkpoint(
        folder / "model", request.param, num_layers=LAYERS, **FAMILIES[request.param]
    )
    bundle = Bundle.open(edgeprec.export_bundle(checkpoint, folder / "pair.edgeprec"))
    target = bundle.target
    onnx = OnnxRuntimeEngine.open(target.graph_path("fp32"), target.architecture, context_tokens=CONTEXT, threads=1)
    (engine,) = open_torch_pair(bundle, context_tokens=CONTEXT, provider="cpu", sequences=3)
    yield Pair(bundle, engine, onnx)
    engine.close()
    onnx.close()


@pytest.fixture
def engine(pair: Pair) -> TorchEngine:
    """Return the torch engine of a family."""
    return pair.torch


def run(engine: Any, start: int, end: int, plan: Plan = FP16) -> Rows:
    """Run TEXT[start:end] in one pass and return a copy of its logits."""
    logits: Rows = engine.forward(TEXT[start:end], position=start, plan=plan).logits
    return logits.copy()


def greedy(engine: Any, prompt: list[int], count: int, plan: Plan = FP16) -> list[int]:
    """Decode greedily, one token a pass."""
    tokens = list(prompt)
    fed = 0
    while len(tokens) < len(prompt) + count:
        tokens.append(engine.forward(tokens[fed:], position=fed, plan=plan).facts(-1).argmax)
        fed = len(tokens) - 1
    return tokens[len(prompt) :]


def test_info_tells_shapes_and_limits(pair: Pair) -> None:
    """What a session plans with; the memory is the arena's."""
    info = pair.torch.info
    assert (info.name, info.device, info.num_layers, info.vocab_size) == ("torch", "cpu", LAYERS, VOCABULARY)
    assert (info.context_tokens, info.max_rows, info.has_bitwise_rows, info.fallbacks) == (CONTEXT, 128, True, ())
    assert info.memory_bytes > 2 * VOCABULARY * 48 * 4
    assert isinstance(pair.torch, DraftingEngine)
    assert not isinstance(pair.onnx, DraftingEngine)


def test_logits_are_those_of_onnxruntime(pair: Pair) -> None:
    """The same FP16 logits to float32 rounding; INT4 to what ONNX Runtime's int8 activations lose."""
    np.testing.assert_allclose(run(pair.torch, 0, 60), run(pair.onnx, 0, 60), atol=3e-5)
    np.testing.assert_allclose(run(pair.torch, 0, 60, INT4), run(pair.onnx, 0, 60, INT4), atol=0.4)


def test_int4_is_the_dequantized_weights(pair: Pair) -> None:
    """INT4 and FP16 differ, and the gates choose layer by layer."""
    plans = [FP16, INT4, *(Plan(tuple(index == gate for index in range(LAYERS + 1))) for gate in range(LAYERS + 1))]
    rows = [run(pair.torch, 0, 20, plan) for plan in plans]
    for index, row in enumerate(rows):
        for other in rows[:index]:
            assert not np.array_equal(row, other)


def test_tokens_are_those_of_onnxruntime(pair: Pair) -> None:
    """Greedy FP16 decoding gives the same text."""
    assert greedy(pair.torch, TEXT[:9], 40) == greedy(pair.onnx, TEXT[:9], 40)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16, 17, 33])
def test_rows_do_not_depend_on_their_pass(engine: TorchEngine, size: int) -> None:
    """Single steps, drafts of any length and prompts in pieces give the very same bits."""
    whole = run(engine, 0, 64)
    pieces = [run(engine, start, min(start + size, 64)) for start in range(0, 64, size)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_rollback_leaves_nothing_behind(engine: TorchEngine) -> None:
    """Wrong tokens in FP16 and INT4 beyond a position change nothing once the position is passed again."""
    whole = run(engine, 0, 40)
    engine.forward([5] * 30, position=20, plan=INT4)
    engine.forward([7] * 12, position=22, plan=FP16)
    assert np.array_equal(run(engine, 20, 40), whole[20:])


def test_last_position_of_the_context(engine: TorchEngine) -> None:
    """The cache holds exactly the context."""
    run(engine, 0, 60)
    whole = run(engine, 60, CONTEXT)
    assert np.array_equal(run(engine, CONTEXT - 1, CONTEXT)[0], whole[-1])


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_draft_is_greedy_decoding(engine: TorchEngine, rows: int, count: int) -> None:
    """One call gives what single steps give: tokens, entropies, margins."""
    run(engine, 0, 20)
    facts = engine.draft(TEXT[20 : 20 + rows], position=20, plan=INT4, count=count, vocabulary=VOCABULARY)
    run(engine, 0, 20)
    fed, position, expected = TEXT[20 : 20 + rows], 20, []
    for _ in range(count):
        expected.append(engine.forward(fed, position=position, plan=INT4).facts(-1))
        position += len(fed)
        fed = [expected[-1].argmax]
    assert list(facts) == expected


def test_draft_keeps_to_the_shared_vocabulary(engine: TorchEngine) -> None:
    """Ids beyond it are not chosen and have no mass."""
    logits = run(engine, 0, 10, INT4)[-1]
    (facts,) = engine.draft(TEXT[9:10], position=9, plan=INT4, count=1, vocabulary=7)
    assert facts.argmax == int(logits[:7].argmax())
    assert facts.entropy_bits <= np.log2(7) + 1e-6


def test_facts_need_no_copy_of_the_logits(engine: TorchEngine) -> None:
    """Argmax, entropy in bits and margin of a row, and again after the logits were fetched."""
    step = engine.forward(TEXT[:3], position=0, plan=FP16)
    facts = step.facts(1)
    row = step.logits[1].astype(np.float64)
    p = np.exp(row - row.max())
    p /= p.sum()
    first, second = np.sort(row)[::-1][:2]
    assert isinstance(facts, RowFacts)
    assert facts.argmax == int(row.argmax())
    assert facts.entropy_bits == pytest.approx(float(-(p * np.log2(p)).sum()), abs=1e-4)
    assert facts.margin == pytest.approx(first - second, abs=1e-5)
    assert step.facts(1) == facts


def test_prompts_of_any_length_take_two_kinds_of_passes(engine: TorchEngine) -> None:
    """A GPU captures passes by their rows: those of prompts are filled up, which changes no row and adds none."""
    lengths = (17, 23, 32, 33, 60, 64)
    expected = [run(engine, 0, rows) for rows in lengths]
    kinds: list[Any] = []

    def capture(body: Callable[[], None]) -> Any:
        kinds.append(body)
        return SimpleNamespace(replay=body)

    try:
        engine.graphs.capture = capture
        for _ in range(2):
            for rows, logits in zip(lengths, expected, strict=True):
                step = engine.forward(TEXT[:rows], position=0, plan=FP16)
                assert step.facts(-1).argmax == logits[-1].argmax()
                np.testing.assert_array_equal(step.logits, logits)
    finally:
        engine.graphs.capture = None
        engine.graphs.clear()
    assert len(kinds) == 2


def test_a_pass_is_read_before_the_next_one(engine: TorchEngine) -> None:
    """What the next pass overwrites is refused, not returned."""
    step = engine.forward(TEXT[:2], position=0, plan=FP16)
    engine.forward(TEXT[2:4], position=2, plan=FP16)
    with pytest.raises(EngineError, match="read after the next one had begun"):
        _ = step.logits


def test_batch_rows_are_single_runs(engine: TorchEngine) -> None:
    """Sequences at positions of their own, one of them left out, give the bits they give alone."""
    texts = [TEXT[:30], TEXT[10:33], TEXT[40:77]]
    alone = []
    for text in texts:
        engine.forward(text[:-3], position=0, plan=FP16)
        alone.append(engine.forward(text[-3:], position=len(text) - 3, plan=FP16).logits.copy())
    engine.forward_batch([text[:-3][:20] for text in texts], positions=[0, 0, 0], plan=FP16)
    engine.forward_batch([text[20:-3] for text in texts], positions=[20, 20, 20], plan=FP16)
    batch = engine.forward_batch([text[-3:] for text in texts], positions=[len(text) - 3 for text in texts], plan=FP16)
    assert np.array_equal(batch.step.logits.reshape(3, 3, -1), np.stack(alone))
    engine.forward_batch([[1], [], [2]], positions=[30, 23, 37], plan=FP16)
    again = engine.forward_batch([texts[0][-1:], texts[1][-2:], []], positions=[29, 21, 0], plan=FP16)
    assert again.facts(1, 1).argmax == int(alone[1][-1].argmax())
    assert np.array_equal(again.step.logits[:1], alone[0][-1:])


def test_rows_that_are_not_there(engine: TorchEngine) -> None:
    """A pass made wider than its texts gives their bits, and writes nothing into the cache behind them."""
    engine.forward(TEXT[:30], position=0, plan=FP16)
    alone = engine.forward(TEXT[30:33], position=30, plan=FP16).logits.copy()
    engine.forward(TEXT[:30], position=0, plan=FP16)
    before = [part[0, :, 30:].clone() for layer in engine.model.cache for part in layer]
    wide = engine.forward_batch([TEXT[24:30], []], positions=[24, 0], plan=FP16, width=16)
    assert (wide.rows_per_sequence, len(wide.step.logits)) == (16, 32)
    after = [part[0, :, 30:] for layer in engine.model.cache for part in layer]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert np.array_equal(engine.forward(TEXT[30:33], position=30, plan=FP16).logits, alone)


@pytest.mark.parametrize(
    ("rows", "position", "plan", "match"),
    [
        (0, 0, FP16, "has 0 rows, expected 1 to 128"),
        (129, 0, FP16, "has 129 rows"),
        (1, -1, FP16, "leaves the context of 100"),
        (1, CONTEXT, FP16, "1 rows at position 100 leaves the context"),
        (4, CONTEXT - 3, INT4, "leaves the context"),
        (1, 0, Plan.uniform(Precision.INT4, num_layers=2), "plan is for 2 layers, the model has 3"),
    ],
)
def test_passes_out_of_range_are_refused(engine: TorchEngine, rows: int, position: int, plan: Plan, match: str) -> None:
    """Nothing is run that would write beside the cache."""
    with pytest.raises(EngineError, match=match):
        engine.forward([1] * rows, position=position, plan=plan)


@pytest.mark.parametrize(("count", "position"), [(0, 0), (9, 0), (8, CONTEXT - 7)])
def test_drafts_out_of_range_are_refused(engine: TorchEngine, count: int, position: int) -> None:
    """As many as the buffers hold, inside the context."""
    with pytest.raises(EngineError, match=f"a draft has {count} tokens"):
        engine.draft([1], position=position, plan=INT4, count=count, vocabulary=VOCABULARY)
    engine.draft([1], position=CONTEXT - 8, plan=INT4, count=8, vocabulary=VOCABULARY)


def test_more_sequences_than_there_is_room_for(engine: TorchEngine) -> None:
    """The cache was cut for three."""
    with pytest.raises(EngineError, match="has 4 sequences and 4 positions, expected 1 to 3"):
        engine.forward_batch([[1]] * 4, positions=[0] * 4, plan=FP16)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_token_the_model_lacks(engine: TorchEngine, token: int) -> None:
    """An id outside the embedding is refused, and the engine goes on."""
    with pytest.raises(EngineError, match=f"failed at position 0: the model has no token {token}"):
        engine.forward([token], position=0, plan=FP16)
    run(engine, 0, 2)
