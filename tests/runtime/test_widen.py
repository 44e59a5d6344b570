"""Widening keeps the function: a small model at larger shapes gives the small model's logits."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
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
def widen() -> ModuleType:
    """Import ``scripts/widen.py``, which imports its neighbour."""
    folder = str(Path(__file__).parents[2] / "scripts")
    sys.path.append(folder)
    try:
        return import_module("widen")
    finally:
        sys.path.remove(folder)


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
