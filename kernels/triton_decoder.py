"""What a decoder layer does between its linears, row by row: embedding, norm, rotary embedding and cache write.

Every row has programs of its own with one order of sums, so its bits do not depend on the rows beside it. Positions
are read from device memory: a captured graph serves every position.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["embed_kernel", "load_turned", "rms_norm_kernel", "rotate_kernel"]


@triton.jit
def embed_kernel(
    tokens_ptr, table_ptr, out_ptr, vocabulary, WIDTH: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    """Copy row ``tokens[m]`` of table [V, WIDTH] to out float32 [M, WIDTH].

    tokens_ptr int32 [M]; an id beyond the vocabulary (what a row of NaN has as its largest) reads the nearest row.
    Programs: rows, blocks of columns.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.minimum(tl.maximum(tl.load(tokens_ptr + row), 0), vocabulary - 1)
    values = tl.load(table_ptr + token.to(tl.int64) * WIDTH + column, mask=column < WIDTH, other=0.0)
    tl.store(out_ptr + row * WIDTH + column, values.to(tl.float32), mask=column < WIDTH)


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    """Store y [M, WIDTH] = x / sqrt(mean x^2 + eps) * weight, computed in float32.

    x_ptr [M, WIDTH] of any type, weight_ptr float32 [WIDTH], y_ptr fp16, bf16 or float32. Programs: rows.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(x_ptr + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps)) * weight
    tl.store(y_ptr + row * WIDTH + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def load_turned(
    source,
    position,
    is_row,
    d,
    cos_ptr,
    sin_ptr,
    norm_ptr,
    eps,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Return heads float32 [R, D], each turned by its position, 0 where not ``is_row``.

    source [R] points to element 0 of a head of 2 HALF; position and is_row [R]; d = 0 .. D - 1
    cos_ptr, sin_ptr float32 [positions, HALF]; element i turns with element HALF + i
    norm_ptr float32 [2 HALF], used where HAS_NORM: the root-mean-square norm of each head before it is turned
    """
    WIDTH: tl.constexpr = 2 * HALF
    inside = is_row[:, None] & (d < WIDTH)[None, :]
    is_low = d < HALF
    other = tl.where(is_low, d + HALF, d - HALF)
    x = tl.load(source[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(source[:, None] + other[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = 1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + eps)
        x = x * factor[:, None] * tl.load(norm_ptr + d, mask=d < WIDTH, other=0.0)[None, :]
        partner = partner * factor[:, None] * tl.load(norm_ptr + other, mask=d < WIDTH, other=0.0)[None, :]
    angle = tl.maximum(position, 0)[:, None] * HALF + tl.where(is_low, d, d - HALF)[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    return tl.fma(x, cos, tl.where(is_low[None, :], -partner, partner) * sin)


@triton.jit(do_not_specialize=["rows_per_sequence"])
def rotate_kernel(
    qkv_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    rows_per_sequence,
    capacity,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Rotate one head of one row by its position; write keys and values to the cache.

    qkv_ptr         fp16 [M, (HEADS + 2 KV_HEADS) d], d = 2 HALF, heads q | k | v; row m belongs to sequence
                    m // rows_per_sequence
    positions_ptr   int32 [M], -1 = the row is not there and writes nothing to the cache
    cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, HAS_NORM, eps   see ``load_turned``; BLOCK is d rounded up
    q_ptr           fp16 [M, HEADS, d]; keys_ptr, values_ptr fp16 [sequences, KV_HEADS, capacity, d]

    Programs: rows, heads.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    WIDTH: tl.constexpr = 2 * HALF
    one = tl.arange(0, 1)
    row = tl.program_id(0) + one
    head = tl.program_id(1)
    position = tl.load(positions_ptr + row)
    d = tl.arange(0, BLOCK)
    inside = (d < WIDTH)[None, :]
    source = qkv_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * WIDTH
    kv_head = (head - HEADS) % KV_HEADS
    slot = ((row // rows_per_sequence) * KV_HEADS + kv_head).to(tl.int64) * capacity + position
    if head < HEADS:
        query = load_turned(source, position, one == 0, d, cos_ptr, sin_ptr, q_norm_ptr, eps, HALF, HAS_NORM)
        target = q_ptr + (row * HEADS + head)[:, None] * WIDTH + d[None, :]
        tl.store(target, query.to(q_ptr.dtype.element_ty), mask=inside)
    elif head < HEADS + KV_HEADS:
        key = load_turned(source, position, one == 0, d, cos_ptr, sin_ptr, k_norm_ptr, eps, HALF, HAS_NORM)
        target = keys_ptr + slot[:, None] * WIDTH + d[None, :]
        tl.store(target, key.to(keys_ptr.dtype.element_ty), mask=inside & (position >= 0)[:, None])
    else:
        value = tl.load(source[:, None] + d[None, :], mask=inside, other=0.0)
        target = values_ptr + slot[:, None] * WIDTH + d[None, :]
        tl.store(target, value.to(values_ptr.dtype.element_ty), mask=inside & (position >= 0)[:, None])
