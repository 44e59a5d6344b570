"""A plain torch decoder of the supported families: teacher and draft of a distillation. Knows no files, no loss.

The embedding and the head are tensors outside the module's parameters, because a draft shares its target's. Weights are
kept in the type they are loaded in; activations have the type of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeprec.architecture import ModelConfig
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.rotary import inverse_frequencies

__all__ = ["Attend", "Decoder", "DecoderLayer", "Ends", "WeightView", "attend_causally", "load_decoder"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query [B, H, T, d], key [B, H_kv, T, d], value) -> attended [B, H, T, d]."""

WeightView = Callable[[Tensor], Tensor]
"""What a linear's weight [out, in] looks like when it is used, e.g. rounded to INT4."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What target and draft share: the embedding and the head, both [V, D]; one tensor where they are tied."""

    embedding: Tensor
    head: Tensor


class Linear(nn.Module):
    """x W^T + b, the weight [out, in] seen through ``view``."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.view: WeightView | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        weight = self.weight if self.view is None else self.view(self.weight)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, weight.to(x.dtype), bias)


class Norm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, scale: Tensor, epsilon: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return functional.rms_norm(x, self.scale.shape, self.scale.to(x.dtype), self.epsilon)


class DecoderLayer(nn.Module):
    """One layer with merged linears, as ``edgeprec.architecture`` describes them."""

    def __init__(self, config: ModelConfig, linears: dict[str, Linear], norms: dict[str, Norm]) -> None:
        super().__init__()
        self.config = config
        self.linears = nn.ModuleDict(linears)
        self.norms = nn.ModuleDict(norms)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend, index: int) -> Tensor:
        """[B, T, D] -> [B, T, D]; ``index`` is the layer's place in its decoder."""
        config = self.config
        qkv = self.linears["qkv"](self.norms["input"](x))
        query, key, value = qkv.split([config.q_size, config.kv_size, config.kv_size], dim=-1)
        query = _rotate(self._heads(query, "q"), rotary)
        key = _rotate(self._heads(key, "k"), rotary)
        attended = attend(index, query, key, self._heads(value, "v")).transpose(1, 2).flatten(2)  # [B, T, H d]
        x = x + self.linears["o"](attended)
        gate, up = self.linears["gate_up"](self.norms["post_attention"](x)).chunk(2, dim=-1)
        down: Tensor = self.linears["down"](functional.silu(gate) * up)
        return x + down

    def _heads(self, x: Tensor, name: str) -> Tensor:
        split = x.reshape(*x.shape[:-1], -1, self.config.head_dim)
        if name in self.norms:
            split = self.norms[name](split)
        return split.transpose(1, 2)  # [B, heads, T, d]


class Decoder(nn.Module):
    """Layers and final norm over shared ends. The state dict holds what a draft owns and nothing it shares."""

    def __init__(self, config: ModelConfig, layers: Iterable[DecoderLayer], final_norm: Norm, ends: Ends) -> None:
        super().__init__()
        self.config = config
        self.ends = ends
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self._frequencies = torch.tensor(inverse_frequencies(config), dtype=torch.float32, device=ends.head.device)

    def forward(self, tokens: Tensor, skipped: int | None = None) -> Tensor:
        """Token ids [B, T] -> hidden states after the final norm [B, T, D]; layer ``skipped`` is left out."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.run(tokens, positions, attend_causally, skipped=skipped)

    def run(self, tokens: Tensor, positions: Tensor, attend: Attend, *, skipped: int | None = None) -> Tensor:
        """Token ids [B, T] at ``positions`` [T] -> hidden states [B, T, D]."""
        x = self.ends.embedding[tokens]
        angles = positions.float()[:, None] * self._frequencies  # [T, d / 2]
        rotary = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for index, layer in enumerate(self.layers):
            if index != skipped:
                x = layer(x, rotary, attend, index)
        normed: Tensor = self.final_norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return functional.linear(hidden, self.ends.head)

    def see_weights(self, view: WeightView | None) -> None:
        """Let every linear use its weight through ``view``; None = as it is."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.view = view


def attend_causally(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each position sees itself and what came before."""
    is_grouped = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=is_grouped)


def load_decoder(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Read a whole checkpoint into a decoder.

    Raises:
        ConfigError: a weight cannot be read or is beyond FP16.
    """
    config = checkpoint.config

    def moved(values: npt.NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

    embedding = moved(checkpoint.embedding())
    head = checkpoint.head()
    ends = Ends(embedding, embedding if head is None else moved(head.T))
    layers = starmap(_read_layer, ((checkpoint, index, moved) for index in range(config.num_layers)))
    decoder = Decoder(config, layers, Norm(moved(checkpoint.final_norm()), config.rms_norm_eps), ends)
    return decoder.requires_grad_(False)


def _read_layer(
    checkpoint: Checkpoint, index: int, moved: Callable[[npt.NDArray[np.floating]], Tensor]
) -> DecoderLayer:
    config = checkpoint.config
    bias = checkpoint.bias(index)
    linears = {
        "qkv": Linear(moved(checkpoint.linear(index, "qkv").T), None if bias is None else moved(bias)),
        "o": Linear(moved(checkpoint.linear(index, "o").T)),
        "gate_up": Linear(moved(checkpoint.linear(index, "gate_up").T)),
        "down": Linear(moved(checkpoint.linear(index, "down").T)),
    }
    norms = {
        "input": Norm(moved(checkpoint.norm(index, "input")), config.rms_norm_eps),
        "post_attention": Norm(moved(checkpoint.norm(index, "post_attention")), config.rms_norm_eps),
    }
    if config.has_qk_norm:
        norms["q"] = Norm(moved(checkpoint.norm(index, "q")), config.rms_norm_eps)
        norms["k"] = Norm(moved(checkpoint.norm(index, "k")), config.rms_norm_eps)
    return DecoderLayer(config, linears, norms)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate halves of the heads [B, heads, T, d] (RoFormer, in the layout of Llama checkpoints)."""
    cos, sin = rotary
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
