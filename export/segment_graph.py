"""A segment of a model as an ONNX graph for TensorRT, one precision, no conditionals.

embed    tokens [1, T] int64, positions [1, T] int64, columns [W] int64 = 0 .. W - 1
         -> hidden [1, T, D], cos and sin [1, T, d / 2], mask [1, 1, T, W] bool
layers   hidden, cos, sin, mask, write_index [1] int64, past_key_<i>, past_value_<i> [1, H_kv, S, d]
         -> hidden_out [1, T, D], present_key_<i>, present_value_<i> (bind them to the same memory as the past)
head     hidden -> logits [1, T, V] float32

Attention gets its causal mask as an input: TensorRT-RTX 1.7 parses the whole graph's Attention without its
``nonpad_kv_seqlen`` and with the mask aligned at the upper left, so a query would see the first slots of the cache
only. W, the slots that are read, is the length of ``columns``: a pass costs what is in the cache, not what may be.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from edgeprec.architecture import ModelConfig
from edgeprec.engine_segment import Segment, SegmentPart
from edgeprec.export.decoder_parts import DecoderParts
from edgeprec.export.graph_builder import GraphBuilder
from edgeprec.export.graph_linears import GraphLinears, GraphWeights
from edgeprec.export.onnx_graph import COMPUTE_TYPES
from edgeprec.precision import Precision

__all__ = ["build_segment_graph"]

Shape = Sequence[int | str]


def build_segment_graph(
    config: ModelConfig, weights: GraphWeights, segment: Segment, *, context_tokens: int, compute: str = "fp16"
) -> onnx.ModelProto:
    """Return the graph of one segment; ``compute`` is ``"fp16"`` or ``"fp32"``, the type of activations and cache."""
    builder = _SegmentGraph(config, weights, context_tokens=context_tokens, compute_type=COMPUTE_TYPES[compute])
    if segment.part is SegmentPart.EMBED:
        return builder.embed(segment.name)
    assert segment.precision is not None, f"segment {segment.name} has no precision"
    if segment.part is SegmentPart.HEAD:
        return builder.head(segment.name, segment.precision)
    return builder.layers(segment, segment.precision)


class _SegmentGraph:
    def __init__(self, config: ModelConfig, weights: GraphWeights, *, context_tokens: int, compute_type: int) -> None:
        self.config = config
        self.context_tokens = context_tokens
        self.compute_type = compute_type
        self.graph = GraphBuilder()
        self.parts = DecoderParts(config=config, weights=weights, compute_type=compute_type)
        self.linears = GraphLinears(config=config, weights=weights, parts=self.parts)

    def embed(self, name: str) -> onnx.ModelProto:
        graph, parts = self.graph, self.parts
        embedded = graph.add("Gather", parts.weights.place(graph, "embed"), "tokens", axis=0)
        graph.add("Cast", embedded, to=self.compute_type, name="hidden")
        for table, value in zip(("cos", "sin"), parts.rotary_tables(graph), strict=True):
            graph.add("Identity", value, name=table)
        rows = graph.add("Unsqueeze", "positions", graph.integers(1, 3))  # [1, 1, T, 1]
        graph.add("LessOrEqual", "columns", rows, name="mask")
        inputs = [_integers("tokens", 1, "T"), _integers("positions", 1, "T"), _integers("columns", "W")]
        return graph.model(name, inputs, [self._value("hidden", self._hidden_shape), *self._tables(), _mask()])

    def layers(self, segment: Segment, precision: Precision) -> onnx.ModelProto:
        hidden = "hidden"
        for layer in segment.layers:
            hidden = self._layer(layer, precision, hidden)
        self.graph.add("Identity", hidden, name="hidden_out")
        return self.graph.model(
            segment.name,
            [
                self._value("hidden", self._hidden_shape),
                *self._tables(),
                _mask(),
                _integers("write_index", 1),
                *self._cache("past", segment),
            ],
            [self._value("hidden_out", self._hidden_shape), *self._cache("present", segment)],
        )

    def head(self, name: str, precision: Precision) -> onnx.ModelProto:
        graph = self.graph
        logits = self.linears.head(precision, graph, self.parts.norm(graph, "hidden", "final_norm"))
        graph.add("Cast", logits, to=TensorProto.FLOAT, name="logits")
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "T", self.config.vocab_size])
        return graph.model(name, [self._value("hidden", self._hidden_shape)], [output])

    def _layer(self, layer: int, precision: Precision, hidden: str) -> str:
        graph, parts, linear = self.graph, self.parts, self.linears.linear(precision)
        normed = parts.norm(graph, hidden, f"layers.{layer}.input_norm")
        qkv = linear(graph, normed, f"layers.{layer}.qkv")
        query, key, value = parts.query_key_value(graph, qkv, layer, ("cos", "sin"))
        used = graph.add("Shape", "mask", start=3)  # [W]
        keys, values = (self._written(part, layer, x, used) for part, x in (("key", key), ("value", value)))
        attended = parts.merge_heads(graph, graph.add("Attention", query, keys, values, "mask"))
        return parts.feed_forward(graph, linear, attended=attended, hidden=hidden, layer=layer).hidden

    def _written(self, part: str, layer: int, rows: str, used: str) -> str:
        """Write new rows into the cache and return its first W slots."""
        graph, name = self.graph, f"{part}_{layer}"
        whole = graph.add("TensorScatter", f"past_{name}", rows, "write_index", name=f"present_{name}", axis=2)
        return graph.add("Slice", whole, graph.integers(0), used, graph.integers(2))

    @property
    def _hidden_shape(self) -> Shape:
        return (1, "T", self.config.hidden_size)

    def _tables(self) -> list[onnx.ValueInfoProto]:
        return [self._value(name, (1, "T", self.config.head_dim // 2)) for name in ("cos", "sin")]

    def _cache(self, tense: str, segment: Segment) -> list[onnx.ValueInfoProto]:
        shape = (1, self.config.num_kv_heads, self.context_tokens, self.config.head_dim)
        names = [f"{tense}_{part}_{layer}" for layer in segment.layers for part in ("key", "value")]
        return [self._value(name, shape) for name in names]

    def _value(self, name: str, shape: Shape) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self.compute_type, list(shape))


def _integers(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def _mask() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("mask", TensorProto.BOOL, [1, 1, "T", "W"])
