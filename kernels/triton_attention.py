"""Attention over a static cache, split along the keys, with bits that depend on nothing but a row's own text: bodies.

A row's keys are cut into splits of a fixed size; each split is one sequence of products in one order, and the splits
are joined first to last. Neither the number of rows in a pass, nor the place of a row in it, nor how many splits the
launch has room for takes part. A tile holds SLOTS = 16 queries: the heads that share keys, of as many rows as fit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["attention_join_kernel", "attention_parts_kernel"]


@triton.jit(do_not_specialize=["rows_per_sequence"])
def attention_parts_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    positions_ptr,
    parts_ptr,
    sums_ptr,
    rows_per_sequence,
    capacity,
    max_splits,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Attend to one split of STEPS * BLOCK keys, for one head of keys and one tile of queries.

    q_ptr          fp16 [M, HEADS, WIDTH]; row m belongs to sequence m // rows_per_sequence
    keys_ptr, values_ptr  fp16 [sequences, KV_HEADS, capacity, WIDTH], finite everywhere
    positions_ptr  int32 [M]; a row sees slots 0 .. position, -1 = none
    parts_ptr      float32 [M, HEADS, max_splits, WIDTH], weighted sums of values, not normalized
    sums_ptr       float32 [M, HEADS, max_splits, 2], largest score and sum of weights

    ``scale`` = log2(e) / sqrt(WIDTH); D is WIDTH rounded up to a power of two, SLOTS the heads that share keys times
    rows. Programs: splits, heads of keys, tiles (those of one sequence side by side).
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    ROWS: tl.constexpr = SLOTS // GROUP
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    tile = tl.program_id(2)
    tiles = (rows_per_sequence + ROWS - 1) // ROWS
    sequence = tile // tiles
    slot = tl.arange(0, SLOTS)
    local = (tile % tiles) * ROWS + slot // GROUP
    is_slot = (slot < ROWS * GROUP) & (local < rows_per_sequence)
    row = sequence * rows_per_sequence + local
    length = tl.load(positions_ptr + row, mask=is_slot, other=-1) + 1
    longest = tl.max(length, 0)
    start = split * (STEPS * BLOCK)
    if start < longest:
        head = kv_head * GROUP + slot % GROUP
        d = tl.arange(0, D)
        is_d = d < WIDTH
        q_at = (row * HEADS + head)[:, None] * WIDTH + d[None, :]
        q = tl.load(q_ptr + q_at, mask=is_slot[:, None] & is_d[None, :], other=0.0)
        base = (sequence * KV_HEADS + kv_head).to(tl.int64) * capacity * WIDTH
        keys = keys_ptr + base
        values = values_ptr + base
        n = start + tl.arange(0, BLOCK)
        top = tl.full((SLOTS,), -float("inf"), tl.float32)
        total = tl.zeros((SLOTS,), tl.float32)
        acc = tl.zeros((SLOTS, D), tl.float32)
        for _ in tl.range(0, STEPS, num_stages=2):
            is_key = n < longest
            k = tl.load(keys + n[None, :] * WIDTH + d[:, None], mask=is_key[None, :] & is_d[:, None], other=0.0)
            v = tl.load(values + n[:, None] * WIDTH + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0)
            scores = tl.dot(q, k) * scale
            scores = tl.where(n[None, :] < length[:, None], scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(new_top == -float("inf"), 0.0, new_top)  # a row that ends before this split has no scores
            weights = tl.exp2(scores - shift[:, None])
            fade = tl.exp2(top - shift)
            total = total * fade + tl.sum(weights, 1)
            acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
            top = new_top
            n += BLOCK
        at = (row * HEADS + head).to(tl.int64) * max_splits + split
        tl.store(parts_ptr + at[:, None] * WIDTH + d[None, :], acc, mask=is_slot[:, None] & is_d[None, :])
        tl.store(sums_ptr + at * 2, top, mask=is_slot)
        tl.store(sums_ptr + at * 2 + 1, total, mask=is_slot)


@triton.jit
def attention_join_kernel(
    parts_ptr,
    sums_ptr,
    positions_ptr,
    out_ptr,
    max_splits,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Join the splits a row has, CHUNK by CHUNK, into out fp16 [M, HEADS, WIDTH]; a row that is not there becomes 0.

    The other arguments are those of ``attention_parts_kernel``; SPLIT = keys a split. Programs: rows, heads.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    head = tl.program_id(1)
    splits = (tl.load(positions_ptr + row) + SPLIT) // SPLIT
    d = tl.arange(0, D)
    chunk = tl.arange(0, CHUNK)
    base = (row * HEADS + head).to(tl.int64) * max_splits
    top = -float("inf")
    for first in range(0, splits, CHUNK):
        s = first + chunk
        tops = tl.load(sums_ptr + (base + s) * 2, mask=s < splits, other=-float("inf"))
        top = tl.maximum(top, tl.max(tops, 0))
    total = 0.0
    acc = tl.zeros((D,), tl.float32)
    for first in range(0, splits, CHUNK):
        s = first + chunk
        is_split = s < splits
        weights = tl.exp2(tl.load(sums_ptr + (base + s) * 2, mask=is_split, other=-float("inf")) - top)
        total += tl.sum(weights * tl.load(sums_ptr + (base + s) * 2 + 1, mask=is_split, other=0.0), 0)
        at = (base + s)[:, None] * WIDTH + d[None, :]
        parts = tl.load(parts_ptr + at, mask=is_split[:, None] & (d < WIDTH)[None, :], other=0.0)
        acc += tl.sum(weights[:, None] * parts, 0)
    y = acc / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + (row * HEADS + head) * WIDTH + d, y.to(out_ptr.dtype.element_ty), mask=d < WIDTH)
