"""The CPU engine's cache is as long as its text: the same bits at any length, and nothing lost when it changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import edgeprec
from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.onnxruntime_cache import GrowingCache, cache_steps

TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 700)]


@pytest.mark.parametrize(
    ("longest", "steps"),
    [
        (100, [100]),
        (128, [128]),
        (129, [128, 129]),
        (200, [128, 192, 200]),
        (2049, [128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 2049]),
    ],
)
def test_steps(longest: int, steps: list[int]) -> None:
    """From the first length on by halves, and never beyond the longest."""
    assert cache_steps(longest) == steps


@pytest.fixture
def cache(tiny_pair: Path) -> GrowingCache:
    """Return the cache of a tiny model for up to 2,049 tokens; what is bound is the array itself."""
    config: ModelConfig = Bundle.open(tiny_pair).target.entry.architecture
    return GrowingCache(config, longest=2049, bindable=lambda array: array)


def test_growing_keeps_what_there_is(cache: GrowingCache) -> None:
    """More room has the old tokens in front; as long as they fit, nothing is bound anew."""
    cache.values["key_0"][:] = 3.0
    bound = cache.values["key_0"]
    assert not cache.fit(128)
    assert cache.values["key_0"] is bound
    assert cache.fit(200)
    grown = cache.values["key_0"]
    assert grown.shape[2] == cache.tokens == 256
    assert (grown[:, :, :128] == 3.0).all()
    assert (grown[:, :, 128:] == 0.0).all()


def test_shrinks_for_a_much_shorter_text_only(cache: GrowingCache) -> None:
    """A rollback keeps the room; a new text that needs a quarter of it or less gets a cache of its own length."""
    cache.fit(2049)
    assert cache.tokens == 2049
    assert not cache.fit(513)
    cache.values["value_1"][:] = 7.0
    assert cache.fit(400)
    assert cache.tokens == 512
    assert (cache.values["value_1"] == 7.0).all()
    assert not cache.fit(129)
    assert cache.fit(128)
    assert cache.tokens == 128


@pytest.fixture(scope="module")
def long_bundle(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a toy with room for 1,100 tokens."""
    folder = tmp_path_factory.mktemp("cache")
    made = checkpoints.make_checkpoint(folder / "toy", "llama", max_positions=1100)
    return edgeprec.export_bundle(made, folder / "toy.edgeprec", draft="none")


@pytest.fixture
def engines(long_bundle: Path) -> Iterator[tuple[OnnxRuntimeEngine, OnnxRuntimeEngine]]:
    """Open one graph twice, for a context of 1,000."""
    root = long_bundle
    config, graph = Bundle.open(root).target.entry.architecture, root / "target" / "model.fp32.onnx"
    one, two = (OnnxRuntimeEngine.open(graph, config, context_tokens=1000, threads=1) for _ in range(2))
    yield one, two
    one.close()
    two.close()


@pytest.mark.parametrize("precision", list(Precision))
def test_logits_are_the_same_bits(engines: tuple[OnnxRuntimeEngine, OnnxRuntimeEngine], precision: Precision) -> None:
    """A text over three lengths of the cache, in passes of several sizes and with a rollback, then a short one."""
    growing, whole = engines
    plan = Plan.uniform(precision, num_layers=2)
    sizes = iter([1, 2, 5, 8, 64, 30] * 30)
    seen = set()
    for text in (TEXT, TEXT[100:120]):
        position = 0
        while position < len(text):
            rows = text[position : position + next(sizes)]
            whole._cache._steps = [1001]
            expected = whole.forward(rows, position=position, plan=plan).logits.copy()
            got = growing.forward(rows, position=position, plan=plan).logits
            assert np.array_equal(got, expected), f"position {position}: max {np.abs(got - expected).max():.2e}"
            seen.add(growing._cache.tokens)
            position += len(rows) - (len(rows) == 8)
    assert {128, 192, 256, 384, 512, 768} <= seen
    assert (growing._cache.tokens, whole._cache.tokens) == (128, 1001)
