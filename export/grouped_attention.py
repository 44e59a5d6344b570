"""Attention of a layer as ONNX Runtime's own operator: rotary embedding, cache and heads in one node instead of 14.

It is in the graph that runs on ONNX Runtime's CPU alone (``model.fp32.onnx``); every node there costs some microseconds
a layer, which a small model's step consists of to a fifth (docs/lab-notes.md). Rotary tables are inputs, as long as the
engine's context. One sequence a pass.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx
from onnx import TensorProto, helper

from edgeprec.architecture import ModelConfig
from edgeprec.export.decoder_parts import DecoderParts
from edgeprec.export.graph_builder import RUNTIME_DOMAIN, GraphBuilder

__all__ = ["GroupedAttention", "can_group", "table_inputs"]

_TABLES = ("rotary_cos", "rotary_sin")
_HEAD_DIM_STEP = 16  # its rotary embedding takes such head dimensions alone


class GroupedAttention(NamedTuple):
    """What all layers share: int32 tokens in the cache before a pass's last one [B], and after it, a scalar."""

    last_index: str
    total: str

    @classmethod
    def begin(cls, graph: GraphBuilder) -> GroupedAttention:
        """Append what is computed once a pass."""
        lengths = graph.add("Cast", "kv_length", to=TensorProto.INT32)
        one = graph.add("Cast", graph.integers(1), to=TensorProto.INT32)
        return cls(graph.add("Sub", lengths, one), graph.add("ReduceMax", lengths, keepdims=0))

    def attend(self, graph: GraphBuilder, parts: DecoderParts, qkv: str, layer: int) -> str:
        """[B, T, (H + 2 H_kv) d] -> [B, T, H d]; the layer's cache is written in place."""
        config = parts.config
        inputs = [*_query_key_value(graph, parts, qkv, layer), f"past_key_{layer}", f"past_value_{layer}"]
        attended = graph.fresh("GroupQueryAttention")
        graph.add_named(
            "GroupQueryAttention",
            [*inputs, self.last_index, self.total, *_TABLES],
            [attended, f"present_key_{layer}", f"present_value_{layer}"],
            domain=RUNTIME_DOMAIN,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=config.head_dim**-0.5,
        )
        return attended


def can_group(config: ModelConfig) -> bool:
    """Whether the operator takes heads of this size."""
    return config.head_dim % _HEAD_DIM_STEP == 0


def table_inputs(config: ModelConfig) -> list[onnx.ValueInfoProto]:
    """Return the graph's inputs cos and sin [longest text, d / 2]."""
    shape: list[str | int | None] = ["R", config.head_dim // 2]
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in _TABLES]


def _query_key_value(graph: GraphBuilder, parts: DecoderParts, qkv: str, layer: int) -> tuple[str, str, str]:
    """Return them as the operator takes them: packed, or apart where a model norms each head."""
    config, names = parts.config, (f"layers.{layer}.q_norm", f"layers.{layer}.k_norm")
    if not any(parts.weights.has(name) for name in names):
        return qkv, "", ""
    sizes = graph.integers(config.q_size, config.kv_size, config.kv_size)
    query, key, value = graph.add_many("Split", qkv, sizes, outputs=3, axis=-1)
    return (
        _normed(graph, parts, query, names[0], config.num_heads),
        _normed(graph, parts, key, names[1], config.num_kv_heads),
        value,
    )


def _normed(graph: GraphBuilder, parts: DecoderParts, x: str, name: str, heads: int) -> str:
    split = graph.add("Reshape", x, graph.integers(0, 0, heads, parts.config.head_dim))
    return graph.add("Reshape", parts.norm(graph, split, name), graph.integers(0, 0, heads * parts.config.head_dim))
