"""A small model's function at a large model's shapes: true cost and true text where no large checkpoint can be had.

With an orthonormal Q [D', D] the residual stream h becomes Q h:

    readers   W -> W diag(g) Q^T sqrt(D / D')     the norm's weight g moves in, its eps becomes eps D / D'
    writers   W -> Q W                            embedding E -> E Q^T
    heads     rotary pair i -> pair r i, r = d' / d, queries times sqrt(r): the same angles, the same scores
    MLP       units repeated until I' are full, the down projection divided by how often
    layers    further ones read as much and write nothing: their values are zero, so attention gives zero; every MLP
              unit is there twice, with opposite signs in the down projection

Weights come out dense, further layers too, so that they cost the time and the energy of any weights; INT4 errs as on
any model; logits are the small model's to FP16 rounding. Tables that use it say "8B-shaped". In memory this is a source
for the torch engine, as ``bench_decode.py`` uses it; run as a program it writes a checkpoint
(``widened_checkpoint.py``):

    python scripts/widen.py SOURCE -o FOLDER --shape 8b|1b|tiny|none
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from synthetic_weights import quantize_rtn

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.kernels.repack import DeviceInt4Weight
from edgeprec.runtime.torch_weights import WeightSource

__all__ = ["WidenedSource", "widened_config"]

_NEUTRAL_SCALE = 1 / 16  # a layer reads what another one was made for: its products must stay inside FP16


def widened_config(small: ModelConfig, shape: ModelConfig) -> ModelConfig:
    """Return the widths and depth of ``shape`` with what the function depends on from ``small``.

    Raises:
        ConfigError: the small model does not fit into the shape.
    """
    if small.has_qk_norm or small.has_qkv_bias:
        raise ConfigError(f"widening takes models without biases and head norms, {small.family} has them: use a Llama")
    is_grouped = shape.num_heads // shape.num_kv_heads >= small.num_heads // small.num_kv_heads
    fits = (
        shape.hidden_size >= small.hidden_size
        and shape.intermediate_size >= small.intermediate_size
        and shape.num_layers >= small.num_layers
        and shape.num_kv_heads >= small.num_kv_heads
        and shape.head_dim % small.head_dim == 0
    )
    if not (fits and is_grouped):
        raise ConfigError(
            f"a model of {small.num_layers} layers, width {small.hidden_size} and {small.num_heads} / "
            f"{small.num_kv_heads} heads of {small.head_dim} does not fit into {shape.num_layers} layers, width "
            f"{shape.hidden_size} and {shape.num_heads} / {shape.num_kv_heads} heads of {shape.head_dim}"
        )
    return replace(
        shape,
        vocab_size=small.vocab_size,
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / shape.hidden_size,
        rope_theta=small.rope_theta,
        rope_scaling=small.rope_scaling,
        max_positions=small.max_positions,
        tied_embeddings=False,
    )


class WidenedSource:
    """The weights of ``small``, a source of a model of ``small_config``, at the shapes of ``config``.

    ``config`` is what ``widened_config`` returned. Everything is computed on ``device``, in float32. With
    ``has_own_axes`` Q is [1; 0], norms stay where they are and blocks of INT4 hold the small model's values: what a
    draft has learned for its grid is kept. Rows of o and down beyond the small model's width are zero then, in the
    layers that write.
    """

    def __init__(
        self,
        small: WeightSource,
        small_config: ModelConfig,
        config: ModelConfig,
        device: torch.device,
        *,
        group_size: int = 128,
        seed: int = 0,
        has_own_axes: bool = False,
    ) -> None:
        self._small = small
        self._from = small_config
        self._to = config
        self._device = device
        self._group_size = group_size
        generator = torch.Generator().manual_seed(seed)  # the same on every device
        draw = torch.randn(config.hidden_size, small_config.hidden_size, generator=generator)
        q = torch.eye(*draw.shape) if has_own_axes else torch.linalg.qr(draw).Q
        self._q = q.to(device)  # [D', D]
        self._has_own_axes = has_own_axes
        self._narrowing = math.sqrt(small_config.hidden_size / config.hidden_size)

    def vector(self, name: str) -> torch.Tensor:
        """Return a norm's weights: ones, where the next linear has taken them in."""
        ones = torch.ones(self._to.hidden_size, device=self._device)
        if not self._has_own_axes:
            return ones
        ones[: self._from.hidden_size] = self._gain(name)
        return ones * self._narrowing

    def _gain(self, norm: str) -> torch.Tensor:
        """Return the small model's norm; a layer on top has that of the layer it is made of."""
        if norm != "final_norm":
            _, index, part = norm.split(".")
            norm = f"layers.{int(index) % self._from.num_layers}.{part}"
        return self._small.vector(norm).to(self._device)

    def matrix(self, name: str) -> torch.Tensor:
        """Return an FP16 linear as [N, K], or the embedding [V, D]."""
        if name == "embed":
            return (self._read("embed") @ self._q.t()).half()
        if name == "head":
            is_tied = self._from.tied_embeddings
            return self._reader(self._read("embed" if is_tied else "head"), "final_norm").half()
        _, index, linear = name.split(".")
        layer, small_layers = int(index), self._from.num_layers
        wide = self._linear(layer, linear) if layer < small_layers else self._neutral(layer % small_layers, linear)
        return wide.half()

    def int4(self, name: str) -> DeviceInt4Weight:
        """Return the same linear in INT4, rounded to nearest."""
        return quantize_rtn(self.matrix(name), self._group_size)

    def _neutral(self, layer: int, linear: str) -> torch.Tensor:
        """Return a linear of a layer that adds nothing, made of the weights of ``layer``."""
        if linear == "o":
            return self._dense_rows(self._linear(layer, linear))
        weight = self._read(f"layers.{layer}.{linear}")
        if linear == "qkv":
            weight[-self._from.kv_size :] = 0.0
            return self._heads(self._reader(weight, f"layers.{layer}.input_norm"))
        half = self._to.intermediate_size // 2
        units = torch.arange(half, device=self._device) % self._from.intermediate_size
        if linear == "gate_up":
            gate, up = self._reader(weight, f"layers.{layer}.post_attention_norm").chunk(2)
            up = up * _NEUTRAL_SCALE
            wide = torch.cat((gate[units], gate[units], up[units], up[units]))
        else:
            once = self._dense_rows(self._q @ weight[:, units])
            wide = torch.cat((once, -once), dim=1)
        if half % self._group_size == 0 and 2 * half == self._to.intermediate_size:
            return wide
        k, n = self._to.linear_shape(linear)
        return torch.zeros((n, k), device=self._device)  # blocks of INT4 would hold both signs, which err apart

    def _linear(self, layer: int, linear: str) -> torch.Tensor:
        weight = self._read(f"layers.{layer}.{linear}")
        if linear == "qkv":
            return self._heads(self._reader(weight, f"layers.{layer}.input_norm"))
        if linear == "o":
            return self._q @ self._head_columns(weight)
        if linear == "gate_up":
            gate, up = self._reader(weight, f"layers.{layer}.post_attention_norm").chunk(2)
            return torch.cat((gate[self._units()], up[self._units()]))
        units = self._units()
        copies = units.bincount(minlength=self._from.intermediate_size)
        return self._q @ (weight / copies)[:, units]

    def _reader(self, weight: torch.Tensor, norm: str) -> torch.Tensor:
        if self._has_own_axes:  # further columns meet zeros: they may hold anything
            return weight[:, torch.arange(self._to.hidden_size, device=self._device) % self._from.hidden_size]
        return (weight * self._gain(norm)) @ self._q.t() * self._narrowing

    def _dense_rows(self, weight: torch.Tensor) -> torch.Tensor:
        """Fill the rows of a writer that adds nothing, where its own axes leave zeros."""
        if not self._has_own_axes:
            return weight
        return weight[torch.arange(self._to.hidden_size, device=self._device) % self._from.hidden_size]

    def _heads(self, qkv: torch.Tensor) -> torch.Tensor:
        """Spread rows of q | k | v over the heads there are."""
        small, wide = self._from, self._to
        q, k, v = qkv[: small.q_size], qkv[small.q_size : -small.kv_size], qkv[-small.kv_size :]
        scale = math.sqrt(wide.head_dim / small.head_dim)
        spread = [
            self._spread(q * scale, self._query_heads(), wide.num_heads),
            self._spread(k, torch.arange(small.num_kv_heads), wide.num_kv_heads),
            self._spread(v, torch.arange(small.num_kv_heads), wide.num_kv_heads),
        ]
        return torch.cat(spread)

    def _head_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """Spread the columns of the output projection [D, H d] like its input."""
        return self._spread(weight.t(), self._query_heads(), self._to.num_heads).t()

    def _spread(self, rows: torch.Tensor, heads: torch.Tensor, count: int) -> torch.Tensor:
        """Put rows [h d, K] of heads 0 .. h - 1 into zeros [count d', K], head i at ``heads[i]``."""
        d, wide_d = self._from.head_dim, self._to.head_dim
        ratio = wide_d // d
        pairs = torch.arange(d // 2) * ratio
        inside = torch.cat((pairs, pairs + wide_d // 2))
        spread = rows.new_zeros((count, wide_d, rows.shape[1]))
        at = (heads[:, None].to(rows.device), inside[None, :].to(rows.device))
        spread[at] = rows.view(-1, d, rows.shape[1])
        return spread.view(count * wide_d, -1)

    def _query_heads(self) -> torch.Tensor:
        """Return where each query head goes, so that it stays with its key head."""
        group = self._from.num_heads // self._from.num_kv_heads
        wide_group = self._to.num_heads // self._to.num_kv_heads
        heads = torch.arange(self._from.num_heads)
        return heads // group * wide_group + heads % group

    def _units(self) -> torch.Tensor:
        return torch.arange(self._to.intermediate_size, device=self._device) % self._from.intermediate_size

    def _read(self, name: str) -> torch.Tensor:
        return self._small.matrix(name).to(self._device, torch.float32, copy=True)


if __name__ == "__main__":
    from widened_checkpoint import main

    main()
