"""The pieces of a decoder layer as ONNX nodes, shared by the whole graph and calibration's one-layer graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from edgeprec.architecture import ModelConfig
from edgeprec.export.graph_builder import GraphBuilder
from edgeprec.export.rotary import inverse_frequencies

__all__ = ["DecoderParts", "FeedForward", "Linear", "WeightSource"]

Linear = Callable[[GraphBuilder, str, str], str]
"""Append x @ W + b to a graph: (graph, x, name of the linear) -> output."""

FLOAT = 1  # onnx.TensorProto.FLOAT


class WeightSource(Protocol):
    """Where the FP16 file's tensors come from."""

    def has(self, name: str) -> bool:
        """Return whether the model has this tensor."""
        ...

    def place(self, graph: GraphBuilder, name: str) -> str:
        """Make the tensor known to ``graph`` and return the name it has there."""
        ...


class FeedForward(NamedTuple):
    """Outputs of the part after attention; the last two are the inputs of gate_up and down, for calibration."""

    hidden: str
    gate_up_input: str
    down_input: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """Builds layer pieces for one model; ``compute_type`` is an onnx.TensorProto type.

    ``is_hoisting`` keeps FP16 linears outside the branches that use them; see ``tensor_names.shares_fp16_constants``.
    """

    config: ModelConfig
    weights: WeightSource
    compute_type: int
    is_hoisting: bool = False

    def cast(self, graph: GraphBuilder, value: str) -> str:
        """Convert to the compute type; on a weight this folds when the graph is loaded."""
        return graph.add("Cast", value, to=self.compute_type)

    def weight(self, graph: GraphBuilder, name: str) -> str:
        """Return a weight in the compute type."""
        return self.cast(graph, self.weights.place(graph, name))

    def fp16_linear(self, graph: GraphBuilder, x: str, name: str) -> str:
        """Append x @ W (+ b) with the FP16 weights."""
        weight = self.weight(self.home(graph), name)
        return self.biased(graph, graph.add("MatMul", x, weight), name)

    def home(self, graph: GraphBuilder) -> GraphBuilder:
        """Return the graph that holds the FP16 weights a branch uses."""
        return graph.root if self.is_hoisting else graph

    def biased(self, graph: GraphBuilder, product: str, name: str) -> str:
        """Add the linear's bias where it has one; Sum, because MatMul + Add would be fused to Gemm."""
        bias = f"{name}.bias"
        return graph.add("Sum", product, self.weight(graph, bias)) if self.weights.has(bias) else product

    def norm(self, graph: GraphBuilder, x: str, name: str) -> str:
        """Append the root-mean-square norm over the last axis."""
        return graph.add("RMSNormalization", x, self.weight(graph, name), axis=-1, epsilon=self.config.rms_norm_eps)

    def rotary_tables(self, graph: GraphBuilder) -> tuple[str, str]:
        """Compute cos and sin [B, T, d / 2] of input ``positions`` in float32, whatever the compute type."""
        positions = graph.add("Cast", graph.add("Unsqueeze", "positions", graph.integers(2)), to=FLOAT)
        frequencies = graph.constant("inverse_frequencies", inverse_frequencies(self.config).astype(np.float32))
        angles = graph.add("Mul", positions, frequencies)
        return self.cast(graph, graph.add("Cos", angles)), self.cast(graph, graph.add("Sin", angles))

    def query_key_value(
        self, graph: GraphBuilder, qkv: str, layer: int, tables: tuple[str, str]
    ) -> tuple[str, str, str]:
        """Split [B, T, (H + 2 H_kv) d] into rotated queries and keys and plain values, each [B, heads, T, d]."""
        config = self.config
        sizes = graph.integers(config.q_size, config.kv_size, config.kv_size)
        query, key, value = graph.add_many("Split", qkv, sizes, outputs=3, axis=-1)
        query = self._heads(graph, query, config.num_heads, f"layers.{layer}.q_norm")
        key = self._heads(graph, key, config.num_kv_heads, f"layers.{layer}.k_norm")
        rotated = [graph.add("RotaryEmbedding", x, *tables, interleaved=0) for x in (query, key)]
        return rotated[0], rotated[1], self._heads(graph, value, config.num_kv_heads, None)

    def merge_heads(self, graph: GraphBuilder, attended: str) -> str:
        """[B, H, T, d] -> [B, T, H d]."""
        merged = graph.add("Transpose", attended, perm=[0, 2, 1, 3])
        return graph.add("Reshape", merged, graph.integers(0, 0, self.config.q_size))

    def feed_forward(
        self, graph: GraphBuilder, linear: Linear, *, attended: str, hidden: str, layer: int
    ) -> FeedForward:
        """Append output projection, residual, norm, SwiGLU and its residual; [B, T, H d] and [B, T, D] -> [B, T, D]."""
        prefix = f"layers.{layer}"
        residual = graph.add("Sum", linear(graph, attended, f"{prefix}.o"), hidden)
        normed = self.norm(graph, residual, f"{prefix}.post_attention_norm")
        gate_up = linear(graph, normed, f"{prefix}.gate_up")
        gate, up = graph.add_many("Split", gate_up, outputs=2, axis=-1, num_outputs=2)
        activated = graph.add("Mul", graph.add("Mul", gate, graph.add("Sigmoid", gate)), up)
        output = graph.add("Sum", linear(graph, activated, f"{prefix}.down"), residual)
        return FeedForward(output, normed, activated)

    def _heads(self, graph: GraphBuilder, x: str, heads: int, norm: str | None) -> str:
        """Split [B, T, heads d] into [B, heads, T, d], with the per-head norm of Qwen3 where the model has it."""
        split = graph.add("Reshape", x, graph.integers(0, 0, heads, self.config.head_dim))
        if norm is not None and self.weights.has(norm):
            split = self.norm(graph, split, norm)
        return graph.add("Transpose", split, perm=[0, 2, 1, 3])
