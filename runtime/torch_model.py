"""The decoder's forward pass on one page: embedding, layers, head.

A pass has M = sequences * rows_per_sequence rows; row m belongs to sequence m // rows_per_sequence. The residual
stream is float32; everything else is FP16 on a GPU and float32 on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgeprec.architecture import ModelConfig
from edgeprec.kernels.decoder import embed, rms_norm, rotate_and_attend
from edgeprec.kernels.decoder_shapes import KvLayer
from edgeprec.kernels.dispatch import fp16_linear, fp16_swiglu, head_statistics, int4_linear, int4_swiglu
from edgeprec.kernels.repack import DeviceInt4Weight
from edgeprec.runtime.torch_space import PassBuffers
from edgeprec.runtime.torch_weights import DecoderWeights, LayerWeights, LinearWeights

__all__ = ["PassShape", "TorchModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """How the rows of a pass belong together. ``span`` bounds the tokens any row sees; it changes no result."""

    rows_per_sequence: int
    span: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModel:
    """Weights, cache and buffers of one model. ``gates`` hold one bool per layer and one for the head, True = INT4."""

    config: ModelConfig
    weights: DecoderWeights
    cache: tuple[KvLayer, ...]
    buffers: PassBuffers

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, *, shape: PassShape, gates: tuple[bool, ...]
    ) -> torch.Tensor:
        """Write the rows' cache entries and return the residual stream float32 [M, D] after the last layer.

        ``tokens`` and ``positions`` are int32 [M] on the device; a position of -1 is a row that is not there.
        """
        hidden = embed(tokens, self.weights.embedding, out=self.buffers.hidden[: tokens.numel()])
        for layer, cache, is_int4 in zip(self.weights.layers, self.cache, gates, strict=False):
            self._attention(hidden, positions, layer, cache, shape, is_int4)
            self._feed_forward(hidden, layer, is_int4)
        return hidden

    def logits(self, hidden: torch.Tensor, *, is_int4: bool) -> torch.Tensor:
        """Return logits float32 [M, V], in the buffer for them."""
        rows = hidden.shape[0]
        normed = self._norm(hidden, self.weights.final_norm)
        return _linear(normed, self.weights.head, is_int4, out=self.buffers.logits[:rows])

    def statistics(self, logits: torch.Tensor, *, first: int = 0, vocabulary: int | None = None) -> torch.Tensor:
        """Put argmax, margin and entropy of every row into the buffer from ``first`` on; return argmax int32 [M].

        ``vocabulary`` leaves out all ids from there on.
        """
        rows = self.buffers.head_rows(first, logits.shape[0])
        return head_statistics(logits if vocabulary is None else logits[:, :vocabulary], out=rows).argmax

    def _attention(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        layer: LayerWeights,
        cache: KvLayer,
        shape: PassShape,
        is_int4: bool,
    ) -> None:
        rows, buffers, config = hidden.shape[0], self.buffers, self.config
        qkv = _linear(self._norm(hidden, layer.input_norm), layer.qkv, is_int4, out=buffers.qkv[:rows])
        attended = rotate_and_attend(
            qkv,
            positions,
            tables=buffers.tables,
            norms=layer.head_norms,
            cache=cache,
            space=buffers.attention,
            rows_per_sequence=shape.rows_per_sequence,
            span=shape.span,
            eps=config.rms_norm_eps,
            query=buffers.query[:rows],
            out=buffers.attended[:rows],
        )
        _linear(attended.view(rows, config.q_size), layer.o, is_int4, residual=hidden, out=hidden)

    def _feed_forward(self, hidden: torch.Tensor, layer: LayerWeights, is_int4: bool) -> None:
        normed = self._norm(hidden, layer.post_attention_norm)
        inner = self.buffers.inner[: hidden.shape[0]]
        weight = layer.gate_up.int4 if is_int4 else layer.gate_up.fp16
        if isinstance(weight, DeviceInt4Weight):
            int4_swiglu(normed, weight, out=inner)
        else:
            fp16_swiglu(normed, weight, out=inner)
        _linear(inner, layer.down, is_int4, residual=hidden, out=hidden)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = self.buffers.normed[: hidden.shape[0]]
        return rms_norm(hidden, weight, eps=self.config.rms_norm_eps, out=out)


def _linear(
    x: torch.Tensor, linear: LinearWeights, is_int4: bool, *, out: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor:
    weight = linear.int4 if is_int4 else linear.fp16
    if isinstance(weight, DeviceInt4Weight):
        return int4_linear(x, weight, bias=linear.bias, residual=residual, out=out)
    return fp16_linear(x, weight, bias=linear.bias, residual=residual, out=out)
