"""Attention over the static cache: the launcher."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgeprec.kernels.decoder_shapes import SPLIT_TOKENS, AttentionSpace, KvLayer, Turning
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_attention import attention_join_kernel, attention_kernel

__all__ = ["MAX_TURNED_ROWS", "attend"]

MAX_TURNED_ROWS = 16  # every tile of a sequence turns all its new keys: more rows are turned beforehand
_BLOCK = 64
_CHUNK = 16
_LEAST_SLOTS = 16  # rows of a tensor-core product
_MOST_JOINED_SPLITS = 32  # that one program joins; more are joined by a kernel with a program for each row and head


def attend(
    source: torch.Tensor,
    positions: torch.Tensor,
    cache: KvLayer,
    space: AttentionSpace,
    out: torch.Tensor,
    *,
    rows_per_sequence: int,
    span: int,
    turning: Turning | None = None,
) -> None:
    """Fill out [M, H, d]; no row sees more than ``span`` keys.

    ``source`` holds queries [M, H, d] whose keys are in the cache, or with ``turning`` the output of the linear,
    [M, (H + 2 H_kv) d], at most MAX_TURNED_ROWS a sequence: queries and keys are turned, and the cache is written.
    """
    rows, heads, width = out.shape
    kv_heads, capacity = cache.keys.shape[1:3]
    group = heads // kv_heads
    slots = max(_LEAST_SLOTS, 1 << (group - 1).bit_length())
    tiles = rows // rows_per_sequence * -(-rows_per_sequence // (slots // group))
    splits = -(-span // SPLIT_TOKENS)
    d = max(16, 1 << (width - 1).bit_length())
    has_pdl = target_of(source.device).has_dependent_launch
    options: dict[str, Any] = {"launch_pdl": True} if has_pdl else {}
    cos, sin = (space.sums, space.sums) if turning is None else turning.tables  # something, where nothing is read
    norms = None if turning is None else turning.norms
    q_norm, k_norm = (cos, cos) if norms is None else norms
    new_rows = 0 if turning is None else 1 if rows_per_sequence == 1 else MAX_TURNED_ROWS
    attention_kernel[(splits, kv_heads, tiles)](
        source,
        positions,
        cos,
        sin,
        q_norm,
        k_norm,
        cache.keys,
        cache.values,
        space.parts,
        space.sums,
        space.arrived,
        out,
        rows_per_sequence,
        capacity,
        space.splits,
        math.log2(math.e) / math.sqrt(width),
        0.0 if turning is None else turning.eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        WIDTH=width,
        D=d,
        SLOTS=slots,
        BLOCK=_BLOCK,
        STEPS=SPLIT_TOKENS // _BLOCK,
        CHUNK=_CHUNK,
        NEW_ROWS=new_rows,
        HAS_NORM=norms is not None,
        JOINS=splits <= _MOST_JOINED_SPLITS,
        USE_PDL=has_pdl,
        num_warps=4,
        **options,
    )
    if splits > _MOST_JOINED_SPLITS:
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
