"""Random weights at any shape, made on the device: what tests and benchmarks load where no checkpoint of a size exists.

The scale keeps activations finite through any depth; INT4 is the rounded FP16, so both variants agree as they do in a
real model. Nothing is read from disk.
"""

from __future__ import annotations

import zlib

import torch

from edgeprec.architecture import ModelConfig
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight

__all__ = ["LLAMA_1B", "LLAMA_8B", "SyntheticSource", "quantize_rtn", "shaped"]


def shaped(
    *, hidden: int, layers: int, heads: int, head_dim: int, intermediate: int, vocab: int = 128_256
) -> ModelConfig:
    """Return a Llama with eight key-value heads."""
    return ModelConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        max_positions=131_072,
        tied_embeddings=False,
    )


LLAMA_8B = shaped(hidden=4096, layers=32, heads=32, head_dim=128, intermediate=14_336)
LLAMA_1B = shaped(hidden=2048, layers=16, heads=32, head_dim=64, intermediate=8192)


class SyntheticSource:
    """Draws every tensor from its name and ``seed``, so the same name is the same tensor."""

    def __init__(self, config: ModelConfig, device: torch.device, *, group_size: int = 128, seed: int = 0) -> None:
        self._config = config
        self._device = device
        self._group_size = group_size
        self._seed = seed

    def vector(self, name: str) -> torch.Tensor:
        """Return a norm around 1, or a bias around 0, float32."""
        config = self._config
        is_norm = name.endswith("norm")
        is_head = name.endswith(("q_norm", "k_norm"))
        size = config.head_dim if is_head else config.hidden_size if is_norm else config.linear_shape("qkv")[1]
        return self._normal(name, (size,)) * 0.1 + (1.0 if is_norm else 0.0)

    def matrix(self, name: str) -> torch.Tensor:
        """Return an FP16 linear as [N, K], or the embedding [V, D]."""
        config = self._config
        if name == "embed":
            return self._normal(name, (config.vocab_size, config.hidden_size)).half()
        k, n = config.linear_shape(name.rpartition(".")[2])
        return self._normal(name, (n, k)).mul_(k**-0.5).half()

    def int4(self, name: str) -> DeviceInt4Weight:
        """Return the same linear in INT4; a tied head is the embedding's."""
        is_tied_head = name == "head" and self._config.tied_embeddings
        return quantize_rtn(self.matrix("embed" if is_tied_head else name), self._group_size)

    def _normal(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator(self._device).manual_seed(self._seed * 2**32 + zlib.crc32(name.encode()))
        return torch.randn(shape, device=self._device, generator=generator)


def quantize_rtn(weight: torch.Tensor, group_size: int) -> DeviceInt4Weight:
    """Round [N, K] to symmetric INT4 in blocks along K, straight into the kernels' layout.

    The scale is the block's extreme value over -8, so that one end of the range is used.
    """
    n, k = weight.shape
    row_tiles, k_tiles = -(-n // ROWS_PER_TILE), -(-k // TILE_K)
    padded = weight.new_zeros((row_tiles * ROWS_PER_TILE, k_tiles * TILE_K), dtype=torch.float32)
    padded[:n, :k] = weight
    blocks = padded.view(row_tiles * ROWS_PER_TILE, -1, group_size)
    extreme = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True)).squeeze(2)
    scales = (extreme / -8.0).half()  # [N', blocks]
    divisor = torch.where(scales == 0, 1.0, scales.float()).unsqueeze(2)
    levels = (blocks / divisor).round_().clamp_(-8, 7).add_(8).to(torch.uint8).view(padded.shape)
    planes = levels.view(row_tiles, ROWS_PER_TILE, k_tiles, 4, TILE_K // 4).permute(0, 2, 1, 4, 3).contiguous()
    low, high = planes[..., 0] | planes[..., 1] << 4, planes[..., 2] | planes[..., 3] << 4
    words = torch.stack((low, high), dim=-1).view(torch.int16).squeeze(-1)
    per_tile = scales.view(row_tiles, 2, 8, k_tiles, TILE_K // group_size).permute(0, 3, 2, 1, 4).contiguous()
    return DeviceInt4Weight(words=words, scales=per_tile, zeros=None, n=n, k=k, group_size=group_size)
