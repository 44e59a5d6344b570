"""The torch engine as it runs on a GPU, kernels and all, through Triton's interpreter on a model of one layer.

What only a GPU has is left out: graphs, pinned memory, dependent launch. ``tests/runtime/test_gpu_engine.py`` has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeprec.bundle import Bundle
from edgeprec.kernels import decoder, dispatch
from edgeprec.kernels.dispatch import KernelBackend
from edgeprec.kernels.repack import DeviceInt4Weight
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine import RowFacts
from edgeprec.runtime.engine_torch import TorchEngine
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_io import HostIo, row_facts
from edgeprec.runtime.torch_memory import ModelForm, form_of
from edgeprec.runtime.torch_opening import build_engine, open_torch_pair
from edgeprec.runtime.torch_source import BundleSource

CPU = torch.device("cpu")
CONTEXT, LAYERS = 150, 1
FP16 = Plan.uniform(Precision.FP16, num_layers=LAYERS)
INT4 = Plan.uniform(Precision.INT4, num_layers=LAYERS)
TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 272, CONTEXT)]

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU has its own tests")


class DeviceLikeIo(HostIo):
    """Host memory, but statistics come from the kernels as on a GPU."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.has_statistics = True

    def publish(self, statistics: torch.Tensor, rows: int) -> None:
        """Keep a copy."""
        self._published = statistics[:, :rows].clone()

    def facts(self) -> tuple[RowFacts, ...]:
        """Return what was kept."""
        return row_facts(self._published.numpy())


def gpu_form(bundle: Bundle) -> ModelForm:
    """Return the form a GPU gives the draft model: FP16, INT4 in the kernels' layout, attention in splits."""
    entry = bundle.model("draft").entry
    form = form_of(
        entry.architecture,
        device=CPU,
        group_size=entry.int4.group_size,
        has_zeros=not entry.int4.symmetric,
        context_tokens=CONTEXT,
        sequences=2,
    )
    weights = replace(form.weights, is_packed=True)
    return ModelForm(weights=weights, space=replace(form.space, dtype=torch.float16, has_splits=True))


@pytest.fixture(scope="module")
def engines(tiny_pair: Path) -> Iterator[tuple[TorchEngine, TorchEngine]]:
    """Return the draft model on the kernels, and in plain float32."""
    bundle = Bundle.open(tiny_pair)
    plain = open_torch_pair(bundle, context_tokens=CONTEXT, provider="cpu")[1]
    form = gpu_form(bundle)
    arena = Arena(form.arena_bytes, CPU)
    with pytest.MonkeyPatch.context() as patch:
        for module in (dispatch, decoder):
            patch.setattr(module, "kernel_backend", lambda device: KernelBackend("triton"))
        weights, engine = build_engine(BundleSource(bundle.model("draft"), CPU), form, arena)
        assert isinstance(weights.layers[0].qkv.int4, DeviceInt4Weight)
        assert arena.used_bytes == arena.size_bytes
        engine._io = DeviceLikeIo(form.space.max_rows + 8)
        yield engine, plain


def plainly(plain: TorchEngine, text: list[int], plan: Plan, *, position: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    """Run the float32 engine, whose kernels are torch's even while the others are Triton's."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (dispatch, decoder):
            patch.setattr(module, "kernel_backend", lambda device: KernelBackend("torch"))
        return plain.forward(text, position=position, plan=plan).logits.copy()


@pytest.mark.parametrize("plan", [FP16, INT4, Plan((True, False))], ids=["fp16", "int4", "mixed"])
def test_kernels_give_the_models_logits(engines: tuple[TorchEngine, TorchEngine], plan: Plan) -> None:
    """FP16 activations change logits by rounding only, whatever runs in INT4."""
    engine, plain = engines
    got = engine.forward(TEXT[:9], position=0, plan=plan).logits
    expected = plainly(plain, TEXT[:9], plan)
    print(f"max difference {np.abs(got - expected).max():.2e}")  # noqa: T201, shown on failure
    np.testing.assert_allclose(got, expected, atol=0.03)


def test_long_text_in_pieces(engines: tuple[TorchEngine, TorchEngine]) -> None:
    """Passes at the beginning of a prompt and after 128 cached tokens, in the second split of attention."""
    engine, plain = engines
    for start, end in ((0, 17), (128, 150)):
        for position in (0, 64, 128):
            plainly(plain, TEXT[position : min(position + 64, CONTEXT)], FP16, position=position)
        copy_cache(plain, engine)
        got = engine.forward(TEXT[start:end], position=start, plan=FP16).logits
        np.testing.assert_allclose(got, plainly(plain, TEXT[start:end], FP16, position=start), atol=0.03)


def copy_cache(plain: TorchEngine, engine: TorchEngine) -> None:
    """Give one engine what the other has cached: the interpreter takes a second for a row."""
    assert plain._model is not None
    assert engine._model is not None
    for source, target in zip(plain._model.cache, engine._model.cache, strict=True):
        target.keys[:1].copy_(source.keys)
        target.values[:1].copy_(source.values)


def test_facts_come_from_the_kernels(engines: tuple[TorchEngine, TorchEngine]) -> None:
    """Argmax, entropy and margin of each row, without logits."""
    engine, _ = engines
    step = engine.forward(TEXT[:3], position=0, plan=FP16)
    facts = [step.facts(row) for row in range(3)]
    logits = step.logits.astype(np.float64)
    assert [row.argmax for row in facts] == logits.argmax(axis=1).tolist()
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose([row.entropy_bits for row in facts], -(p * np.log2(p)).sum(axis=1), atol=1e-3)
    np.testing.assert_allclose([row.margin for row in facts], np.diff(np.sort(logits)[:, -2:])[:, 0], atol=1e-4)


@pytest.mark.slow
def test_draft_feeds_itself(engines: tuple[TorchEngine, TorchEngine]) -> None:
    """Tokens go from one step to the next on the device; the tokens are those of single steps."""
    engine, _ = engines
    drafted = engine.draft(TEXT[:2], position=0, plan=INT4, count=2, vocabulary=272)
    fed, position, expected = TEXT[:2], 0, []
    for _ in range(2):
        logits = engine.forward(fed, position=position, plan=INT4).logits[-1, :272]
        expected.append(int(logits.argmax()))
        position += len(fed)
        fed = expected[-1:]
    assert [row.argmax for row in drafted] == expected


def test_sequences_do_not_touch_each_other(engines: tuple[TorchEngine, TorchEngine]) -> None:
    """Two texts of different length in one pass give the logits they give alone."""
    engine, plain = engines
    texts = [TEXT[:7], TEXT[20:24]]
    batch = engine.forward_batch(texts, positions=[0, 0], plan=FP16)
    logits = batch.step.logits.reshape(2, 7, -1)
    for text, rows in zip(texts, logits, strict=True):
        np.testing.assert_allclose(rows[: len(text)], plainly(plain, text, FP16), atol=0.03)
