"""Two layers of the demo pair's own graph, really built for three GPU generations; nothing of it needs a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeprec.bundle import Bundle
from edgeprec.engine_segment import Segment, cut_into_segments
from edgeprec.export.bundle_weights import locate_weights, save_graph
from edgeprec.export.segment_graph import build_segment_graph
from edgeprec.export.tensorrt_builder import PlanBuilder
from edgeprec.precision import Precision
from edgeprec.tensorrt_library import TensorRtLibrary

pytestmark = pytest.mark.slow

SMS, LAYERS, CONTEXT = ("sm86", "sm89", "sm120"), 2, 2048
PROFILES = {Precision.INT4: ((1, 1, 1), (2, 4, 16)), Precision.FP16: ((1, 4, 16),)}
SEGMENT_TEXT_BYTES, LAYER_TEXT_BYTES = 2_000_000, 500_000  # of kernels, for each profile; docs/decisions/020


@pytest.fixture(scope="module")
def tensorrt_rtx() -> Any:
    """Return the library, or skip where the extra is not installed."""
    return pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt is not installed")


@pytest.mark.parametrize("precision", list(Precision))
def test_two_layers_build_with_int4_at_four_bits(
    demo_bundle: Path, tmp_path: Path, tensorrt_rtx: Any, precision: Precision
) -> None:
    """A plan is its weights and the text of its kernels, within 10 %; packed INT4 lies in it once, cache bound."""
    model = Bundle.open(demo_bundle).target
    segment = segment_of(model.architecture, precision)
    graph = build_segment_graph(model.architecture, locate_weights(model), segment, context_tokens=CONTEXT)
    weight_bytes = save_graph(graph, tmp_path / "two.onnx")
    profiles = PROFILES[precision]
    library = TensorRtLibrary("tensorrt_rtx", tensorrt_rtx)
    plan = bytes(
        PlanBuilder(library, SMS, CONTEXT, profiles, lambda phase: None).build(tmp_path / "two.onnx", name="two")
    )
    expected = weight_bytes + len(profiles) * (SEGMENT_TEXT_BYTES + LAYERS * LAYER_TEXT_BYTES)
    assert weight_bytes < len(plan) < 1.1 * expected, f"{len(plan):,} bytes, expected {expected:,}"
    for layer in range(LAYERS):
        for name in (f"past_key_{layer}", f"past_value_{layer}", f"present_key_{layer}", f"present_value_{layer}"):
            assert name.encode() in plan
    with model.open_int4() as int4:
        for name in ("qkv", "o", "gate_up", "down"):
            packed = transposed(int4.array(f"layers.{LAYERS - 1}.{name}.packed"))
            assert plan.count(packed) == int(precision is Precision.INT4), name


def segment_of(config: Any, precision: Precision) -> Segment:
    """Return the first layers in one precision."""
    segments = cut_into_segments(config, layers_per_segment=LAYERS)
    return next(one for one in segments if one.precision is precision and one.layers == range(LAYERS))


def transposed(packed: Any) -> bytes:
    """Return INT4 [K, N / 2] as [N, K / 2], as plans hold it."""
    values = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).T
    return (values[:, 0::2] | (values[:, 1::2] << 4)).tobytes()
