"""Widening keeps the function: a small model at larger shapes gives the small model's logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import edgeprec
from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.torch_arena import Arena
from edgeprec.runtime.torch_memory import form_of
from edgeprec.runtime.torch_opening import build_engine, open_torch_pair
from edgeprec.runtime.torch_source import BundleSource

CPU = torch.device("cpu")
TEXT = [int(token) for token in np.random.default_rng(2).integers(0, 300, 60)]


@pytest.fixture(scope="module")
def widen(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """Import ``scripts/widen.py``."""
    return load_script("widen")


def shape(small: ModelConfig, **changes: int) -> ModelConfig:
    """Return a larger shape: other widths, head counts, groups, head width and depth."""
    larger = {
        "hidden_size": 80,
        "intermediate_size": 200,
        "num_layers": 4,
        "num_heads": 12,
        "num_kv_heads": 3,
        "head_dim": 2 * small.head_dim,
    }
    return replace(small, **larger | changes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_logits_are_the_small_models(
    widen: ModuleType, checkpoints: ModuleType, tmp_path: Path, tied: bool, ratio: int
) -> None:
    """FP16 to rounding at every shape; INT4 errs, and stays close."""
    made = checkpoints.make_checkpoint(tmp_path / "small", "llama", num_layers=3, tied=tied, dtype="fp16")
    bundle = Bundle.open(edgeprec.export_bundle(made, tmp_path / "small.edgeprec"))
    small = bundle.target.architecture
    config = widen.widened_config(small, shape(small, head_dim=ratio * small.head_dim))
    source = widen.WidenedSource(BundleSource(bundle.target, CPU), small, config, CPU, group_size=32)
    form = form_of(config, device=CPU, group_size=32, has_zeros=False, context_tokens=100)
    _, wide = build_engine(source, form, Arena(form.arena_bytes, CPU))
    plain = open_torch_pair(bundle, context_tokens=100, provider="cpu")[0]
    expected = plain.forward(TEXT, position=0, plan=Plan.uniform(Precision.FP16, num_layers=3)).logits.copy()
    got = wide.forward(TEXT, position=0, plan=Plan.uniform(Precision.FP16, num_layers=4)).logits.copy()
    print(f"max difference {np.abs(got - expected).max():.2e}")  # noqa: T201, shown on failure
    np.testing.assert_allclose(got, expected, atol=0.02)
    int4 = wide.forward(TEXT, position=0, plan=Plan.uniform(Precision.INT4, num_layers=4)).logits
    assert 0.05 < np.abs(int4 - expected).max() < np.abs(expected).max()


@pytest.mark.parametrize(("intermediate", "is_dense"), [(192, True), (200, False)])
def test_layers_on_top(
    widen: ModuleType, checkpoints: ModuleType, tmp_path: Path, intermediate: int, is_dense: bool
) -> None:
    """They add nothing in FP16 and nothing in INT4, although their weights are not zero where blocks allow it."""
    made = checkpoints.make_checkpoint(tmp_path / "small", "llama", num_layers=1, dtype="fp16")
    bundle = Bundle.open(edgeprec.export_bundle(made, tmp_path / "small.edgeprec"))
    small, logits = bundle.target.architecture, {}
    for layers in (1, 3):
        config = widen.widened_config(small, shape(small, num_layers=layers, intermediate_size=intermediate))
        source = widen.WidenedSource(BundleSource(bundle.target, CPU), small, config, CPU, group_size=32)
        form = form_of(config, device=CPU, group_size=32, has_zeros=False, context_tokens=100)
        _, engine = build_engine(source, form, Arena(form.arena_bytes, CPU))
        for kind in Precision:
            plan = Plan.uniform(kind, num_layers=layers)
            logits[layers, kind] = engine.forward(TEXT, position=0, plan=plan).logits.copy()
    for kind in Precision:
        np.testing.assert_allclose(logits[3, kind], logits[1, kind], atol=1e-4)
    down, o = source.matrix("layers.2.down"), source.matrix("layers.2.o")
    assert bool((down != 0).all()) is is_dense
    assert bool(o.any())


def test_own_axes(widen: ModuleType, checkpoints: ModuleType, tmp_path: Path) -> None:
    """Along its own axes a model keeps its grid: INT4 gives the small model's INT4 logits, not only FP16's."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32}
    made = checkpoints.make_checkpoint(tmp_path / "small", "llama", num_layers=2, dtype="fp16", **sizes)
    bundle = Bundle.open(edgeprec.export_bundle(made, tmp_path / "small.edgeprec"))
    small, logits = bundle.target.architecture, {}
    larger = {"hidden_size": 96, "intermediate_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    for config in (replace(small, tied_embeddings=False), widen.widened_config(small, shape(small, **larger))):
        source = widen.WidenedSource(
            BundleSource(bundle.target, CPU), small, config, CPU, group_size=32, has_own_axes=True
        )
        form = form_of(config, device=CPU, group_size=32, has_zeros=False, context_tokens=100)
        _, engine = build_engine(source, form, Arena(form.arena_bytes, CPU))
        for kind in Precision:
            plan = Plan.uniform(kind, num_layers=config.num_layers)
            logits[config.num_layers, kind] = engine.forward(TEXT, position=0, plan=plan).logits.copy()
    plain = open_torch_pair(bundle, context_tokens=100, provider="cpu")[0]
    expected = plain.forward(TEXT, position=0, plan=Plan.uniform(Precision.FP16, num_layers=2)).logits
    np.testing.assert_allclose(logits[4, Precision.FP16], expected, atol=0.01)
    np.testing.assert_allclose(logits[4, Precision.INT4], logits[2, Precision.INT4], atol=0.01)
    assert np.abs(logits[2, Precision.INT4] - logits[2, Precision.FP16]).max() > 0.05


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 40}, {"num_layers": 2}, {"num_kv_heads": 1}, {"head_dim": 18}, {"num_heads": 3}]
)
def test_shapes_that_are_too_small(widen: ModuleType, tiny_pair: Path, changes: dict[str, int]) -> None:
    """One sentence with both shapes."""
    small = Bundle.open(tiny_pair).target.architecture
    with pytest.raises(ConfigError, match="does not fit into"):
        widen.widened_config(small, shape(small, **changes))


def test_models_with_head_norms(widen: ModuleType, tiny_pair: Path) -> None:
    """Their norms cannot move into a linear."""
    draft = Bundle.open(tiny_pair).model("draft").architecture
    with pytest.raises(ConfigError, match="without biases and head norms, qwen3 has them"):
        widen.widened_config(draft, shape(draft))
