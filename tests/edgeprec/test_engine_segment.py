"""A model is cut into segments whose chain runs any plan, in FP16 where a plan is mixed inside a group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.architecture import ModelConfig
from edgeprec.engine_segment import Segment, SegmentPart, cut_into_segments, pick_segments
from edgeprec.errors import ConfigError
from edgeprec.precision import Plan, Precision

CONFIG = ModelConfig(
    family="llama", vocab_size=21, hidden_size=16, intermediate_size=40, num_layers=5, num_heads=2, num_kv_heads=1,
    head_dim=8, rms_norm_eps=1e-5, rope_theta=10_000.0, max_positions=64, tied_embeddings=True,
)  # fmt: skip


def test_names_tell_layers_and_precision() -> None:
    """Five layers in groups of two: the last group is shorter, and everything but the embedding comes twice."""
    names = [segment.name for segment in cut_into_segments(CONFIG, layers_per_segment=2)]
    assert names == [
        "embed", "layers-0-1.int4", "layers-0-1.fp16", "layers-2-3.int4", "layers-2-3.fp16", "layers-4-4.int4",
        "layers-4-4.fp16", "head.int4", "head.fp16",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, -1])
def test_a_segment_has_layers(count: int) -> None:
    """A number of layers that is none is refused."""
    with pytest.raises(ConfigError, match=f"layers per segment is {count}, expected 1 or more"):
        cut_into_segments(CONFIG, layers_per_segment=count)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_chain_runs_every_layer_once_and_never_below_the_plan(
    layers: int, per_segment: int, data: st.DataObject
) -> None:
    """Embedding first, head last, each layer once between; no layer runs in INT4 that the plan has in FP16."""
    segments = cut_into_segments(replace(CONFIG, num_layers=layers), layers_per_segment=per_segment)
    plan = Plan(tuple(data.draw(st.lists(st.booleans(), min_size=layers + 1, max_size=layers + 1))))
    chain = pick_segments(segments, plan)
    assert (chain[0].part, chain[-1].part) == (SegmentPart.EMBED, SegmentPart.HEAD)
    assert [layer for segment in chain for layer in segment.layers] == list(range(layers))
    for segment in chain[1:-1]:
        gates = [plan.gates[layer] for layer in segment.layers]
        assert segment.precision is (Precision.INT4 if all(gates) else Precision.FP16)
    assert chain[-1].precision is (Precision.INT4 if plan.gates[-1] else Precision.FP16)


def test_single_layers_follow_the_plan_exactly() -> None:
    """With one layer a segment, a mixed plan runs as it stands."""
    plan = Plan((True, False, True, True, False, False))
    chain = pick_segments(cut_into_segments(CONFIG, layers_per_segment=1), plan)
    assert [segment.precision is Precision.INT4 for segment in chain[1:]] == list(plan.gates)


def test_embedding_has_no_precision() -> None:
    """There is one embedding, whatever the plan."""
    assert Segment(part=SegmentPart.EMBED).name == "embed"
