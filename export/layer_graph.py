"""One FP16 decoder layer as an ONNX graph that also returns the input of each of its linears.

Calibration streams a text through the model layer by layer with it, so that only one layer is in memory at a time.

Inputs     hidden [B, T, D] float32, positions [B, T] int64
Outputs    hidden_out [B, T, D], and qkv_input, o_input, gate_up_input, down_input [B, T, K]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.export.decoder_parts import DecoderParts
from edgeprec.export.graph_builder import GraphBuilder

__all__ = ["build_layer_graph"]


@dataclass(frozen=True, slots=True)
class _InlineWeights:
    """Keeps the layer's tensors inside the graph."""

    tensors: Mapping[str, npt.NDArray[Any]]
    placed: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def place(self, graph: GraphBuilder, name: str) -> str:
        if name not in self.placed:
            self.placed.add(name)
            graph.initializers[name] = numpy_helper.from_array(self.tensors[name], name)
        return name


def build_layer_graph(config: ModelConfig, layer: int, tensors: Mapping[str, npt.NDArray[Any]]) -> onnx.ModelProto:
    """Return the graph of one layer; ``tensors`` are its FP16 file's tensors by their full names."""
    graph = GraphBuilder()
    parts = DecoderParts(config=config, weights=_InlineWeights(tensors), compute_type=TensorProto.FLOAT)
    normed = parts.norm(graph, "hidden", f"layers.{layer}.input_norm")
    qkv = parts.fp16_linear(graph, normed, f"layers.{layer}.qkv")
    query, key, value = parts.query_key_value(graph, qkv, layer, parts.rotary_tables(graph))
    attended = parts.merge_heads(graph, graph.add("Attention", query, key, value, is_causal=1))
    after = parts.feed_forward(graph, parts.fp16_linear, attended=attended, hidden="hidden", layer=layer)
    inputs = dict(zip(LINEARS, (normed, attended, after.gate_up_input, after.down_input), strict=True))
    graph.add("Identity", after.hidden, name="hidden_out")
    for name, value_name in inputs.items():
        graph.add("Identity", value_name, name=f"{name}_input")
    return graph.model("layer", _inputs(config), _outputs(config))


def _inputs(config: ModelConfig) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["B", "T", config.hidden_size]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, ["B", "T"]),
    ]


def _outputs(config: ModelConfig) -> list[onnx.ValueInfoProto]:
    widths = {"hidden_out": config.hidden_size}
    widths |= {f"{name}_input": config.linear_shape(name)[0] for name in LINEARS}
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "T", k]) for name, k in widths.items()]
