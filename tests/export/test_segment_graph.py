"""The segments' graphs compute what the bundle's own graph computes: run on ONNX Runtime, link by link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.engine_segment import cut_into_segments, pick_segments
from edgeprec.errors import BundleError
from edgeprec.export.bundle_weights import locate_weights, save_graph
from edgeprec.export.segment_graph import build_segment_graph
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

CONTEXT = 64
TOLERANCE = 2e-5  # float32 sums in another order
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 250, CONTEXT)]
PASSES = [(0, 9), (9, 10), (10, 16), (13, 20), (20, 21), (21, 37)]  # with a rollback from 16 to 13
Forward = Callable[[int, int, Plan], npt.NDArray[np.float32]]


class Chain:
    """Runs segments as an engine would, on the CPU and in float32."""

    def __init__(self, model: BundleModel, folder: Path, *, layers_per_segment: int) -> None:
        config, weights = model.architecture, locate_weights(model)
        self.segments = cut_into_segments(config, layers_per_segment=layers_per_segment)
        self.sessions = {}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        for segment in self.segments:
            path = folder / f"{segment.name}.onnx"
            graph = build_segment_graph(config, weights, segment, context_tokens=CONTEXT, compute="fp32")
            save_graph(graph, path)
            onnx.checker.check_model(str(path), full_check=True)
            self.sessions[segment] = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        cache = np.zeros((1, config.num_kv_heads, CONTEXT, config.head_dim), np.float32)
        self.values: dict[str, Any] = {
            f"past_{part}_{layer}": cache for layer in range(config.num_layers) for part in ("key", "value")
        }

    def forward(self, start: int, end: int, plan: Plan) -> npt.NDArray[np.float32]:
        """Run TOKENS[start:end] and return the logits."""
        self.values |= {
            "tokens": np.array([TOKENS[start:end]]),
            "positions": np.arange(start, end)[None],
            "columns": np.arange(min(CONTEXT, -(-end // 16) * 16)),
            "write_index": np.array([start]),
        }
        for segment in pick_segments(self.segments, plan):
            session = self.sessions[segment]
            inputs = {item.name: self.values[item.name] for item in session.get_inputs()}
            names = [item.name for item in session.get_outputs()]
            for name, value in zip(names, session.run(names, inputs), strict=True):
                self.values["hidden" if name == "hidden_out" else name.replace("present_", "past_")] = value
        return self.values["logits"][0]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("layers_per_segment", [1, 2])
def test_chain_equals_the_whole_graph(tiny_pair: Path, tmp_path: Path, role: str, layers_per_segment: int) -> None:
    """Passes of any size, a rollback among them, give the whole graph's logits for uniform and mixed plans."""
    model = Bundle.open(tiny_pair).model(role)
    layers = model.architecture.num_layers
    chain = Chain(model, tmp_path, layers_per_segment=layers_per_segment)
    engine = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT, threads=1)
    mixed = Plan((True, True, *(False,) * (layers - 2), True)[-(layers + 1) :])
    for plan in (*(Plan.uniform(precision, num_layers=layers) for precision in Precision), mixed):
        for start, end in PASSES:
            expected = engine.forward(TOKENS[start:end], position=start, plan=plan).logits
            difference = np.abs(chain.forward(start, end, plan) - expected)
            assert difference.max() < TOLERANCE, f"max {difference.max()}, mean {difference.mean()}"
    engine.close()


def test_precisions_differ(tiny_pair: Path, tmp_path: Path) -> None:
    """INT4 and FP16 segments are not the same engine twice."""
    model = Bundle.open(tiny_pair).target
    chain = Chain(model, tmp_path, layers_per_segment=3)
    rows = [chain.forward(0, 8, Plan.uniform(precision, num_layers=3)) for precision in Precision]
    assert np.abs(rows[0] - rows[1]).max() > 100 * TOLERANCE


def test_weights_are_copied_beside_the_graph(tiny_pair: Path, tmp_path: Path) -> None:
    """A saved segment needs no other file, and holds only what it reads."""
    model = Bundle.open(tiny_pair).target
    segment = cut_into_segments(model.architecture, layers_per_segment=1)[1]  # layer 0 in INT4
    graph = build_segment_graph(model.architecture, locate_weights(model), segment, context_tokens=CONTEXT)
    size_bytes = save_graph(graph, tmp_path / "one.onnx")
    expected = [
        spec.num_bytes
        for spec in (*model.entry.int4_specs, *model.entry.fp16_specs)
        if spec.name.startswith("layers.0.") and (spec in model.entry.int4_specs or len(spec.shape) == 1)
    ]
    assert size_bytes == sum(expected) == (tmp_path / "one.onnx.weights").stat().st_size
    locations = {
        item.value for tensor in graph.graph.initializer for item in tensor.external_data if item.key == "location"
    }
    assert locations == {"one.onnx.weights"}


def test_damaged_weights_are_named(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bundle whose file is not a tensor file is refused before anything is built."""
    model = Bundle.open(tiny_pair).target
    empty = tmp_path / "int4.safetensors"
    empty.write_bytes(b"")
    monkeypatch.setattr(BundleModel, "int4_path", property(lambda _: empty))
    with pytest.raises(BundleError, match=r"int4\.safetensors cannot be read as a tensor file"):
        locate_weights(model)
