"""Attention over the static cache: the launcher."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgeprec.kernels.decoder_shapes import SPLIT_TOKENS, AttentionSpace, KvLayer
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_attention import attention_join_kernel, attention_parts_kernel

__all__ = ["attend"]

_BLOCK = 64
_CHUNK = 16
_LEAST_SLOTS = 16  # rows of a tensor-core product


def attend(
    query: torch.Tensor,
    positions: torch.Tensor,
    cache: KvLayer,
    space: AttentionSpace,
    out: torch.Tensor,
    *,
    rows_per_sequence: int,
    span: int,
) -> None:
    """Fill out [M, H, d] from query [M, H, d]; no row sees more than ``span`` keys."""
    rows, heads, width = query.shape
    kv_heads, capacity = cache.keys.shape[1:3]
    group = heads // kv_heads
    slots = max(_LEAST_SLOTS, 1 << (group - 1).bit_length())
    tiles = rows // rows_per_sequence * -(-rows_per_sequence // (slots // group))
    d = max(16, 1 << (width - 1).bit_length())
    has_pdl = target_of(query.device).has_dependent_launch
    options: dict[str, Any] = {"launch_pdl": True} if has_pdl else {}
    attention_parts_kernel[(-(-span // SPLIT_TOKENS), kv_heads, tiles)](
        query,
        cache.keys,
        cache.values,
        positions,
        space.parts,
        space.sums,
        rows_per_sequence,
        capacity,
        space.splits,
        math.log2(math.e) / math.sqrt(width),
        HEADS=heads,
        KV_HEADS=kv_heads,
        WIDTH=width,
        D=d,
        SLOTS=slots,
        BLOCK=_BLOCK,
        STEPS=SPLIT_TOKENS // _BLOCK,
        USE_PDL=has_pdl,
        num_warps=4,
        **options,
    )
    attention_join_kernel[(rows, heads)](
        space.parts,
        space.sums,
        positions,
        out,
        space.splits,
        HEADS=heads,
        WIDTH=width,
        D=d,
        SPLIT=SPLIT_TOKENS,
        CHUNK=_CHUNK,
        USE_PDL=has_pdl,
        num_warps=4,
        **options,
    )
