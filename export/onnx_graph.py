"""The decoder as one ONNX graph of opset-24 operators, each layer with an INT4 and an FP16 branch.

Inputs        tokens [B, T] int64, positions [B, T] int64, kv_length [B] int64 (tokens in the cache after this pass),
              gate [L + 1] bool (True = INT4; the last one is the head), past_key_<i>, past_value_<i> [B, H_kv, S, d]
              and with ONNX Runtime's attention rotary_cos, rotary_sin [R, d / 2], R at least as long as the text
Outputs       logits [B, T, V], present_key_<i>, present_value_<i> (bind them to the same memory as the past)

Two If per layer, before and after attention, and one for the head. Only weights are external; they are stored merged
as ``edgeprec.architecture`` says. The graph that computes in float32 runs on ONNX Runtime's CPU alone and has its
attention operator, where that takes the model's heads; the other one is of standard operators.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

from edgeprec.architecture import ModelConfig
from edgeprec.export.decoder_parts import DecoderParts, Linear
from edgeprec.export.graph_builder import GraphBuilder
from edgeprec.export.graph_linears import GraphLinears, GraphWeights
from edgeprec.export.grouped_attention import GroupedAttention, can_group, table_inputs
from edgeprec.precision import Precision
from edgeprec.tensor_names import shares_fp16_constants

__all__ = ["COMPUTE_TYPES", "GraphWeights", "build_graph"]

COMPUTE_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def build_graph(
    config: ModelConfig,
    weights: GraphWeights,
    *,
    compute: str,
    is_hoisting: bool | None = None,
    has_fp16_head: bool = True,
) -> onnx.ModelProto:
    """Return the model; ``compute`` is ``"fp32"`` or ``"fp16"``, the type of activations and cache.

    ``is_hoisting`` keeps FP16 weights outside the branches, for less memory; None = where the model is large.
    ``has_fp16_head`` False puts the INT4 head into both branches: enough to check INT4 and for a draft that shares its
    target's head, without the largest weight.
    """
    hoists = shares_fp16_constants(config) if is_hoisting is None else is_hoisting
    decoder = _Decoder(config, weights, compute_type=COMPUTE_TYPES[compute], is_hoisting=hoists)
    return decoder.build(has_fp16_head=has_fp16_head)


class _Decoder:
    def __init__(self, config: ModelConfig, weights: GraphWeights, *, compute_type: int, is_hoisting: bool) -> None:
        self.config = config
        self.weights = weights
        self.compute_type = compute_type
        self.parts = DecoderParts(config=config, weights=weights, compute_type=compute_type, is_hoisting=is_hoisting)
        self.linears = GraphLinears(config=config, weights=weights, parts=self.parts)
        self.graph = GraphBuilder()
        self.is_grouped = compute_type == TensorProto.FLOAT and can_group(config)

    def build(self, *, has_fp16_head: bool) -> onnx.ModelProto:
        config, graph, parts = self.config, self.graph, self.parts
        gates = graph.add_many(
            "Split", "gate", outputs=config.num_layers + 1, axis=0, num_outputs=config.num_layers + 1
        )
        if self.is_grouped:
            self.grouped = GroupedAttention.begin(graph)
        else:
            self.tables = parts.rotary_tables(graph)
            first = graph.add("Slice", "positions", graph.integers(0), graph.integers(1), graph.integers(1))  # [B, 1]
            self.write_index = graph.add("Squeeze", first, graph.integers(1))  # [B]
        embedded = graph.add("Gather", self.weights.place(graph, "embed"), "tokens", axis=0)
        hidden = parts.cast(graph, embedded)  # [B, T, D]
        for layer in range(config.num_layers):
            hidden = self._layer(layer, gates[layer], hidden)
        self._head(gates[-1], parts.norm(graph, hidden, "final_norm"), has_fp16=has_fp16_head)
        return graph.model("decoder", self._inputs(), self._outputs())

    def _layer(self, layer: int, gate: str, hidden: str) -> str:
        """Append one decoder layer; ``hidden`` [B, T, D] in, the same shape out."""
        config, parts = self.config, self.parts
        normed = parts.norm(self.graph, hidden, f"layers.{layer}.input_norm")
        qkv = self._gated(
            gate,
            lambda branch, linear: linear(branch, normed, f"layers.{layer}.qkv"),
            width=config.q_size + 2 * config.kv_size,
        )
        attended = self._attention(layer, qkv)  # [B, T, H d]
        return self._gated(
            gate,
            lambda branch, linear: (
                parts.feed_forward(branch, linear, attended=attended, hidden=hidden, layer=layer).hidden
            ),
            width=config.hidden_size,
        )

    def _attention(self, layer: int, qkv: str) -> str:
        graph = self.graph
        if self.is_grouped:
            return self.grouped.attend(graph, self.parts, qkv, layer)
        query, key, value = self.parts.query_key_value(graph, qkv, layer, self.tables)
        keys, values = (
            graph.add(
                "TensorScatter", f"past_{part}_{layer}", x, self.write_index, name=f"present_{part}_{layer}", axis=2
            )
            for part, x in (("key", key), ("value", value))
        )
        attended = graph.add("Attention", query, keys, values, "", "", "", "kv_length", is_causal=1)  # [B, H, T, d]
        return self.parts.merge_heads(graph, attended)

    def _head(self, gate: str, hidden: str, *, has_fp16: bool) -> None:
        (logits,) = self.graph.add_if(
            gate,
            lambda branch: [self.linears.int4_head(branch, hidden)],
            lambda branch: [self.linears.head(Precision.FP16 if has_fp16 else Precision.INT4, branch, hidden)],
            data_type=self.compute_type,
            shapes=[["B", "T", self.config.vocab_size]],
        )
        self.graph.add("Identity", logits, name="logits")

    def _gated(self, gate: str, body: Callable[[GraphBuilder, Linear], str], *, width: int) -> str:
        return self.graph.add_if(
            gate,
            lambda branch: [body(branch, self.linears.int4)],
            lambda branch: [body(branch, self.parts.fp16_linear)],
            data_type=self.compute_type,
            shapes=[["B", "T", width]],
        )[0]

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        integers, config = TensorProto.INT64, self.config
        return [
            helper.make_tensor_value_info("tokens", integers, ["B", "T"]),
            helper.make_tensor_value_info("positions", integers, ["B", "T"]),
            helper.make_tensor_value_info("kv_length", integers, ["B"]),
            helper.make_tensor_value_info("gate", TensorProto.BOOL, [config.num_layers + 1]),
            *(table_inputs(config) if self.is_grouped else ()),
            *self._cache("past"),
        ]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info("logits", self.compute_type, ["B", "T", self.config.vocab_size])
        return [logits, *self._cache("present")]

    def _cache(self, tense: str) -> list[onnx.ValueInfoProto]:
        shape: list[str | int | None] = ["B", self.config.num_kv_heads, "S", self.config.head_dim]
        return [
            helper.make_tensor_value_info(f"{tense}_{part}_{layer}", self.compute_type, shape)
            for layer in range(self.config.num_layers)
            for part in ("key", "value")
        ]
