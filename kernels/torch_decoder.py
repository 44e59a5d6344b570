"""What lies between a decoder's linears in plain torch, in float32 and row by row: correct on any device, fast on none.

Attention runs each row by itself over exactly the keys it sees, so that on a CPU too a row's bits do not depend on
the rows that run with it.
"""

from __future__ import annotations

import math

import torch

from edgeprec.kernels.decoder_shapes import KvLayer, RotaryTables

__all__ = ["attend", "embed", "rms_norm", "rotate"]


def embed(tokens: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Store rows ``tokens`` int32 [M] of table [V, D] in out float32 [M, D]."""
    out.copy_(table[tokens.long().clamp(0, table.shape[0] - 1)])


def rms_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, eps: float) -> None:
    """Store the norm of x [M, D], weighted by float32 [D], in out [M, D]."""
    out.copy_(_normed(x.float(), weight, eps))


def rotate(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    tables: RotaryTables,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    cache: KvLayer,
    query: torch.Tensor,
    *,
    rows_per_sequence: int,
    eps: float,
) -> None:
    """Fill query [M, H, d] and the cache from qkv [M, (H + 2 H_kv) d]; a position of -1 writes nothing."""
    heads, width = query.shape[1:]
    kv_heads = cache.keys.shape[1]
    every = qkv.float().view(qkv.shape[0], -1, width)
    q, k, v = every[:, :heads], every[:, heads : heads + kv_heads], every[:, heads + kv_heads :]
    if norms is not None:
        q, k = _normed(q, norms[0], eps), _normed(k, norms[1], eps)
    at = positions.long().clamp(min=0)
    cos, sin = tables.cos[at].unsqueeze(1), tables.sin[at].unsqueeze(1)  # [M, 1, d / 2]
    query.copy_(_turned(q, cos, sin))
    k = _turned(k, cos, sin)
    for row, position in enumerate(positions.tolist()):
        if position >= 0:
            cache.keys[row // rows_per_sequence, :, position] = k[row].to(cache.keys.dtype)
            cache.values[row // rows_per_sequence, :, position] = v[row].to(cache.values.dtype)


def attend(
    query: torch.Tensor, positions: torch.Tensor, cache: KvLayer, out: torch.Tensor, *, rows_per_sequence: int
) -> None:
    """Fill out [M, H, d] from query [M, H, d]; row m sees slots 0 .. positions[m] of its sequence, -1 gives 0."""
    _, heads, width = query.shape
    kv_heads = cache.keys.shape[1]
    grouped = query.float().view(query.shape[0], kv_heads, heads // kv_heads, width)
    for row, position in enumerate(positions.tolist()):
        if position < 0:
            out[row] = 0.0
            continue
        keys, values = (part[row // rows_per_sequence, :, : position + 1].float() for part in cache)
        weights = (grouped[row] @ keys.transpose(1, 2) / math.sqrt(width)).softmax(dim=-1)  # [H_kv, group, n]
        out[row] = (weights @ values).reshape(heads, width).to(out.dtype)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
