"""Launchers of what a decoder layer does between its linears; shapes are checked by the door, ``decoder``."""

from __future__ import annotations

from typing import Any

import torch

from edgeprec.kernels.decoder_shapes import KvLayer, RotaryTables
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_decoder import embed_kernel, rms_norm_kernel, rotate_kernel

__all__ = ["embed", "rms_norm", "rotate"]

_EMBED_BLOCK = 1024


def embed(tokens: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Store rows ``tokens`` int32 [M] of table [V, D] in out float32 [M, D]."""
    width = table.shape[1]
    has_pdl = target_of(out.device).has_dependent_launch
    embed_kernel[(tokens.numel(), -(-width // _EMBED_BLOCK))](
        tokens, table, out, table.shape[0], WIDTH=width, BLOCK=_EMBED_BLOCK, USE_PDL=has_pdl, **_options(has_pdl)
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, eps: float) -> None:
    """Store the norm of x [M, D], weighted by float32 [D], in out [M, D]."""
    width = x.shape[1]
    has_pdl = target_of(x.device).has_dependent_launch
    rms_norm_kernel[(x.shape[0],)](
        x,
        weight,
        out,
        eps,
        WIDTH=width,
        BLOCK=_power_of_two(width),
        USE_PDL=has_pdl,
        num_warps=8 if width >= 2048 else 4,
        **_options(has_pdl),
    )


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
    """Fill query [M, H, d] and the cache from qkv [M, (H + 2 H_kv) d]."""
    heads, width = query.shape[1:]
    kv_heads, capacity = cache.keys.shape[1:3]
    has_pdl = target_of(qkv.device).has_dependent_launch
    q_norm, k_norm = (tables.cos, tables.cos) if norms is None else norms
    rotate_kernel[(qkv.shape[0], heads + 2 * kv_heads)](
        qkv,
        positions,
        tables.cos,
        tables.sin,
        q_norm,
        k_norm,
        query,
        cache.keys,
        cache.values,
        rows_per_sequence,
        capacity,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=width // 2,
        BLOCK=_power_of_two(width),
        HAS_NORM=norms is not None,
        USE_PDL=has_pdl,
        num_warps=1,
        **_options(has_pdl),
    )


def _power_of_two(size: int) -> int:
    return max(2, 1 << (size - 1).bit_length())


def _options(has_dependent_launch: bool) -> dict[str, Any]:
    return {"launch_pdl": True} if has_dependent_launch else {}
