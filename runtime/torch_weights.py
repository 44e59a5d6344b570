"""A decoder's weights as tensors, both variants of every linear, and how they get into an arena.

On a GPU: FP16 [N, K], and INT4 in the kernels' layout. On a CPU, where no kernel reads nibbles: both in float32 [N, K].
Norms and biases are float32. A tied head is the embedding itself; a draft's shared tensors are the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from edgeprec.architecture import LINEARS, LinearName, ModelConfig
from edgeprec.kernels.repack import DeviceInt4Weight, device_bytes
from edgeprec.kernels.torch_fallback import dequantize
from edgeprec.runtime.torch_arena import Arena, aligned_bytes
from edgeprec.tensor_names import linear_name

__all__ = ["DecoderWeights", "LayerWeights", "LinearWeights", "WeightForm", "WeightSource", "load_weights"]


class WeightSource(Protocol):
    """Where weights come from; tensors may lie on any device and are copied."""

    def vector(self, name: str) -> torch.Tensor:
        """Return a norm or bias, float32."""
        ...

    def matrix(self, name: str) -> torch.Tensor:
        """Return an FP16 linear as [N, K], or the embedding [V, D]."""
        ...

    def int4(self, name: str) -> DeviceInt4Weight:
        """Return an INT4 linear in the kernels' layout."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """What decides how many bytes a model's weights take."""

    config: ModelConfig
    group_size: int
    has_zeros: bool
    is_packed: bool  # INT4 stays in four bits: a GPU's kernels read it
    owns_embedding: bool = True
    owns_head: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of FP16 weights in memory, which is that of the activations too."""
        return torch.float16 if self.is_packed else torch.float32

    @property
    def fp16_bytes(self) -> int:
        """Bytes of every linear's FP16 variant, norms and biases; a tied head is counted with the embedding."""
        shapes = [self.config.linear_shape(name) for name in LINEARS] * self.config.num_layers
        if self.owns_head and not self.config.tied_embeddings:
            shapes.append(self.config.linear_shape("head"))
        vectors = aligned_bytes(4 * size for size in self._vector_sizes())
        return vectors + aligned_bytes(k * n * self.dtype.itemsize for k, n in shapes)

    @property
    def int4_bytes(self) -> int:
        """Bytes of every linear's INT4 variant."""
        shapes = [self.config.linear_shape(name) for name in LINEARS] * self.config.num_layers
        if self.owns_head:
            shapes.append(self.config.linear_shape("head"))
        return aligned_bytes(self._int4_bytes(k, n) for k, n in shapes)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the embedding."""
        config = self.config
        size = config.vocab_size * config.hidden_size * self.dtype.itemsize
        return aligned_bytes([size]) if self.owns_embedding else 0

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.fp16_bytes + self.int4_bytes + self.embedding_bytes

    def _int4_bytes(self, k: int, n: int) -> int:
        if not self.is_packed:
            return k * n * 4
        return device_bytes(k=k, n=n, group_size=self.group_size, has_zeros=self.has_zeros)

    def _vector_sizes(self) -> Iterator[int]:
        config = self.config
        for _ in range(config.num_layers):
            yield from (config.hidden_size, config.hidden_size)
            if config.has_qkv_bias:
                yield config.linear_shape("qkv")[1]
            if config.has_qk_norm:
                yield from (config.head_dim, config.head_dim)
        yield config.hidden_size


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Both variants of one linear [N, K] and its bias [N]."""

    fp16: torch.Tensor
    int4: DeviceInt4Weight | torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; the norms of queries and keys are None where the model has none."""

    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    qkv: LinearWeights
    o: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole model."""

    embedding: torch.Tensor  # [V, D]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: LinearWeights


def load_weights(
    source: WeightSource, form: WeightForm, arena: Arena, *, target: DecoderWeights | None = None
) -> DecoderWeights:
    """Copy a model into ``arena``; what it does not own is ``target``'s.

    Raises:
        BundleError: the source lacks a tensor.
        EngineError: the arena is smaller than ``form.total_bytes``.
    """
    loader = _Loader(source, form, arena)
    embedding = loader.matrix("embed") if form.owns_embedding or target is None else target.embedding
    layers = tuple(loader.layer(index) for index in range(form.config.num_layers))
    final_norm = loader.vector("final_norm")
    head = loader.head(embedding) if form.owns_head or target is None else target.head
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, head=head)


@dataclass(frozen=True, slots=True)
class _Loader:
    source: WeightSource
    form: WeightForm
    arena: Arena

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self.form.config, f"layers.{index}"
        head_norms = None
        if config.has_qk_norm:
            head_norms = (self.vector(f"{prefix}.q_norm"), self.vector(f"{prefix}.k_norm"))
        return LayerWeights(
            input_norm=self.vector(f"{prefix}.input_norm"),
            post_attention_norm=self.vector(f"{prefix}.post_attention_norm"),
            head_norms=head_norms,
            qkv=self.linear(index, "qkv"),
            o=self.linear(index, "o"),
            gate_up=self.linear(index, "gate_up"),
            down=self.linear(index, "down"),
        )

    def linear(self, index: int, name: LinearName) -> LinearWeights:
        full = linear_name(index, name)
        has_bias = name == "qkv" and self.form.config.has_qkv_bias
        bias = self.vector(f"{full}.bias") if has_bias else None
        return LinearWeights(self.matrix(full), self.int4(full), bias)

    def head(self, embedding: torch.Tensor) -> LinearWeights:
        fp16 = embedding if self.form.config.tied_embeddings else self.matrix("head")
        return LinearWeights(fp16, self.int4("head"))

    def vector(self, name: str) -> torch.Tensor:
        return self.arena.copy(self.source.vector(name), torch.float32)

    def matrix(self, name: str) -> torch.Tensor:
        return self.arena.copy(self.source.matrix(name), self.form.dtype)

    def int4(self, name: str) -> DeviceInt4Weight | torch.Tensor:
        weight = self.source.int4(name)
        if not self.form.is_packed:
            return self.arena.copy(dequantize(weight), torch.float32)
        return weight.place(self.arena.take_bytes(weight.num_bytes))
