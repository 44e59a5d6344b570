"""A model's linears as ONNX nodes, in either precision: what every graph made from a bundle shares.

A residual or a bias is added with Sum: an Add after a MatMul would be fused to Gemm, and the dequantization would then
run at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeprec.architecture import ModelConfig
from edgeprec.export.decoder_parts import DecoderParts, Linear
from edgeprec.export.graph_builder import ExternalTensor, GraphBuilder
from edgeprec.precision import Precision

__all__ = ["GraphLinears", "GraphWeights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWeights:
    """Where every weight lies: the tensors of both safetensors files by name, and the INT4 block size."""

    fp16: Mapping[str, ExternalTensor]
    int4: Mapping[str, ExternalTensor]
    group_size: int

    def has(self, name: str) -> bool:
        """Return whether the FP16 file holds this tensor."""
        return name in self.fp16

    def place(self, graph: GraphBuilder, name: str) -> str:
        """Refer to a tensor of the FP16 file."""
        return graph.external(name, self.fp16[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLinears:
    """Appends linears and heads to graphs of one model."""

    config: ModelConfig
    weights: GraphWeights
    parts: DecoderParts

    def linear(self, precision: Precision) -> Linear:
        """Return what appends x @ W (+ b) in one precision."""
        return self.int4 if precision is Precision.INT4 else self.parts.fp16_linear

    def head(self, precision: Precision, graph: GraphBuilder, hidden: str) -> str:
        """Append the head in one precision; [B, T, D] -> [B, T, V]."""
        return self.int4_head(graph, hidden) if precision is Precision.INT4 else self.fp16_head(graph, hidden)

    def int4(self, graph: GraphBuilder, x: str, name: str) -> str:
        """Append x @ W (+ b) with the INT4 weights."""
        tensors = self.weights.int4
        inputs = [
            graph.external(f"{name}.packed", tensors[f"{name}.packed"]),
            self.parts.cast(graph, graph.external(f"{name}.scales", tensors[f"{name}.scales"])),
        ]
        if f"{name}.zeros" in tensors:
            inputs.append(graph.external(f"{name}.zeros", tensors[f"{name}.zeros"]))
        weight = graph.add("DequantizeLinear", *inputs, axis=0, block_size=self.weights.group_size)
        return self.parts.biased(graph, graph.add("MatMul", x, weight), name)

    def int4_head(self, graph: GraphBuilder, hidden: str) -> str:
        """Append the INT4 head; a packed head is one column wider than an odd vocabulary."""
        logits = self.int4(graph, hidden, "head")
        if self.weights.int4["head.packed"].shape[1] == self.config.vocab_size:
            return logits
        ints = graph.integers
        return graph.add("Slice", logits, ints(0), ints(self.config.vocab_size), ints(2))

    def fp16_head(self, graph: GraphBuilder, hidden: str) -> str:
        """Append the FP16 head, the embedding transposed where the model is tied."""
        if not self.config.tied_embeddings:
            return self.parts.fp16_linear(graph, hidden, "head")
        home = self.parts.home(graph)
        transposed = home.add("Transpose", self.parts.weight(home, "embed"), perm=[1, 0])  # [D, V]
        return graph.add("MatMul", hidden, transposed)
