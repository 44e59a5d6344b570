"""Attention over a static cache, split along the keys, with bits that depend on nothing but a row's own text: bodies.

A row's keys are cut into splits of a fixed size; each split is one sequence of products in one order, and the splits
are joined first to last. Neither the number of rows in a pass, nor the place of a row in it, nor how many splits the
launch has room for takes part. A tile holds SLOTS = 16 queries: the heads that share keys, of as many rows as fit.

A decoding step is a chain of small kernels that each wait for the one before, so this one does what lies between the
query-key-value linear and the output linear by itself: it turns queries and new keys, writes the cache, and the last
program of a tile to arrive joins its splits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgeprec.kernels.triton_decoder import load_turned

__all__ = ["attention_join_kernel", "attention_kernel"]


@triton.jit
def _joined(
    parts_ptr,
    sums_ptr,
    at,
    own_splits,
    splits,
    d,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Return float32 [SLOTS, D]: the first ``own_splits`` [SLOTS] of at most ``splits`` parts from ``at`` [SLOTS] on.

    The sums go first to last whatever ``splits`` and SLOTS are; 0 where a slot has no split.
    """
    chunk = tl.arange(0, CHUNK)
    tops = tl.full((SLOTS, CHUNK), -float("inf"), tl.float32)
    for first in range(0, splits, CHUNK):
        s = first + chunk
        more = tl.load(
            sums_ptr + (at[:, None] + s[None, :]) * 2,
            mask=s[None, :] < own_splits[:, None],
            other=-float("inf"),
            cache_modifier=".cg",
        )
        tops = tl.maximum(tops, more)
    top = tl.max(tops, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((SLOTS,), tl.float32)
    acc = tl.zeros((SLOTS, D), tl.float32)
    for s in tl.range(0, splits, loop_unroll_factor=4):
        is_own = s < own_splits
        own_top = tl.load(sums_ptr + (at + s) * 2, mask=is_own, other=-float("inf"), cache_modifier=".cg")
        own_total = tl.load(sums_ptr + (at + s) * 2 + 1, mask=is_own, other=0.0, cache_modifier=".cg")
        part = tl.load(
            parts_ptr + (at + s)[:, None] * WIDTH + d[None, :],
            mask=is_own[:, None] & (d < WIDTH)[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        weight = tl.exp2(own_top - top)
        total = tl.fma(weight, own_total, total)
        acc = tl.fma(tl.broadcast_to(weight[:, None], (SLOTS, D)), part, acc)
    return acc / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["rows_per_sequence"])
def attention_kernel(
    q_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    keys_ptr,
    values_ptr,
    parts_ptr,
    sums_ptr,
    arrived_ptr,
    out_ptr,
    rows_per_sequence,
    capacity,
    max_splits,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    CHUNK: tl.constexpr,
    NEW_ROWS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    JOINS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Attend to one split of STEPS * BLOCK keys, for one head of keys and one tile of queries.

    q_ptr          NEW_ROWS = 0: fp16 [M, HEADS, WIDTH], queries already turned, their keys in the cache; else at least
                   ``rows_per_sequence``, and fp16 [M, HEADS + 2 KV_HEADS, WIDTH], heads q | k | v as the linear has
                   them: queries are turned here, keys turned and written, values written
    positions_ptr  int32 [M]; a row sees slots 0 .. position of sequence m // rows_per_sequence, -1 = none
    cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, HAS_NORM, eps   see ``load_turned``
    keys_ptr, values_ptr  fp16 [sequences, KV_HEADS, capacity, WIDTH], finite everywhere
    parts_ptr      float32 [M, HEADS, max_splits, WIDTH], weighted sums of values, not normalized
    sums_ptr       float32 [M, HEADS, max_splits, 2], largest score and sum of weights
    arrived_ptr    int32 [tiles, KV_HEADS], 0 before and after, used where JOINS
    out_ptr        fp16 [M, HEADS, WIDTH], filled where JOINS; a row that is not there becomes 0

    ``scale`` = log2(e) / sqrt(WIDTH); D is WIDTH rounded up to a power of two, SLOTS the heads that share keys times
    rows. Programs: splits, heads of keys, tiles (those of one sequence side by side; each writes all new keys of its
    split, the same values).
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    ROWS: tl.constexpr = SLOTS // GROUP
    SPLIT: tl.constexpr = STEPS * BLOCK
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
    start = split * SPLIT
    if (start < longest) | (split == 0):  # the first program of a tile without rows writes its zeros
        head = kv_head * GROUP + slot % GROUP
        d = tl.arange(0, D)
        is_d = d < WIDTH
        is_here = is_slot[:, None] & is_d[None, :]
        base = (sequence * KV_HEADS + kv_head).to(tl.int64) * capacity * WIDTH
        if NEW_ROWS > 0:
            STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
            HALF: tl.constexpr = WIDTH // 2
            q = load_turned(
                q_ptr + row * STRIDE + head * WIDTH,
                length - 1,
                is_slot,
                d,
                cos_ptr,
                sin_ptr,
                q_norm_ptr,
                eps,
                HALF,
                HAS_NORM,
            ).to(keys_ptr.dtype.element_ty)
            t = tl.arange(0, NEW_ROWS)
            new_row = sequence * rows_per_sequence + t
            position = tl.load(positions_ptr + new_row, mask=t < rows_per_sequence, other=-1)
            is_new = (position >= start) & (position < start + SPLIT)
            source = q_ptr + new_row * STRIDE + (HEADS + kv_head) * WIDTH
            key = load_turned(source, position, is_new, d, cos_ptr, sin_ptr, k_norm_ptr, eps, HALF, HAS_NORM)
            is_written = is_new[:, None] & is_d[None, :]
            value = tl.load(source[:, None] + KV_HEADS * WIDTH + d[None, :], mask=is_written, other=0.0)
            to = base + position[:, None] * WIDTH + d[None, :]
            tl.store(keys_ptr + to, key.to(keys_ptr.dtype.element_ty), mask=is_written)
            tl.store(values_ptr + to, value.to(values_ptr.dtype.element_ty), mask=is_written)
            tl.debug_barrier()  # other threads of this program read them
        else:
            q = tl.load(q_ptr + (row * HEADS + head)[:, None] * WIDTH + d[None, :], mask=is_here, other=0.0)
        keys = keys_ptr + base
        values = values_ptr + base
        n = start + tl.arange(0, BLOCK)
        top = tl.full((SLOTS,), -float("inf"), tl.float32)
        total = tl.zeros((SLOTS,), tl.float32)
        acc = tl.zeros((SLOTS, D), tl.float32)
        for _ in tl.static_range(STEPS):  # plain loads: asynchronous copies might start before the barrier
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
        splits = tl.maximum((longest + SPLIT - 1) // SPLIT, 1)
        at = (row * HEADS + head).to(tl.int64)
        if JOINS and splits == 1:
            y = acc / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(out_ptr + at[:, None] * WIDTH + d[None, :], y.to(out_ptr.dtype.element_ty), mask=is_here)
        else:
            part = at * max_splits + split
            tl.store(parts_ptr + part[:, None] * WIDTH + d[None, :], acc, mask=is_here)
            tl.store(sums_ptr + part * 2, top, mask=is_slot)
            tl.store(sums_ptr + part * 2 + 1, total, mask=is_slot)
            if JOINS:
                tl.debug_barrier()
                counter = arrived_ptr + tile * KV_HEADS + kv_head
                if tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1:
                    own = (length + SPLIT - 1) // SPLIT
                    y = _joined(parts_ptr, sums_ptr, at * max_splits, own, splits, d, WIDTH, D, SLOTS, CHUNK)
                    tl.store(out_ptr + at[:, None] * WIDTH + d[None, :], y.to(out_ptr.dtype.element_ty), mask=is_here)
                    tl.store(counter, 0)


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
    """Join the splits a row has into out fp16 [M, HEADS, WIDTH]; a row that is not there becomes 0.

    For contexts whose splits are too many for one program a tile, with the bits it would have. The other arguments are
    those of ``attention_kernel``; SPLIT = keys a split. Programs: rows, heads.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.arange(0, 1)
    own = (tl.load(positions_ptr + row + slot) + SPLIT) // SPLIT
    d = tl.arange(0, D)
    at = (row * HEADS + head + slot).to(tl.int64)
    y = _joined(parts_ptr, sums_ptr, at * max_splits, own, tl.max(own, 0), d, WIDTH, D, 1, CHUNK)
    tl.store(out_ptr + at[:, None] * WIDTH + d[None, :], y.to(out_ptr.dtype.element_ty), mask=(d < WIDTH)[None, :])
