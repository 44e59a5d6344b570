"""What a decoder layer does between its linears, row by row: embedding, norm, rotary embedding and cache write.

Every row has programs of its own with one order of sums, so its bits do not depend on the rows beside it. Positions
are read from device memory: a captured graph serves every position.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["embed_kernel", "rms_norm_kernel", "rotate_kernel"]


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
    cos_ptr, sin_ptr float32 [positions, HALF]; element i turns with element HALF + i
    q_norm_ptr, k_norm_ptr float32 [d], used where HAS_NORM: the root-mean-square norm of each head before it is turned
    q_ptr           fp16 [M, HEADS, d]; keys_ptr, values_ptr fp16 [sequences, KV_HEADS, capacity, d]

    Programs: rows, heads.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    WIDTH: tl.constexpr = 2 * HALF
    row = tl.program_id(0)
    head = tl.program_id(1)
    position = tl.load(positions_ptr + row)
    i = tl.arange(0, BLOCK)
    inside = i < HALF
    source = qkv_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * WIDTH + i
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    is_value = head >= HEADS + KV_HEADS
    if HAS_NORM:
        factor = 1.0 / tl.sqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / WIDTH + eps)
        weight = k_norm_ptr + i
        if head < HEADS:
            weight = q_norm_ptr + i
        low = tl.where(is_value, low, low * factor * tl.load(weight, mask=inside, other=0.0))
        high = tl.where(is_value, high, high * factor * tl.load(weight + HALF, mask=inside, other=0.0))
    angle = tl.maximum(position, 0) * HALF + i
    cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    first = tl.where(is_value, low, low * cos - high * sin).to(q_ptr.dtype.element_ty)
    second = tl.where(is_value, high, high * cos + low * sin).to(q_ptr.dtype.element_ty)
    if head < HEADS:
        target = q_ptr + (row * HEADS + head) * WIDTH + i
        tl.store(target, first, mask=inside)
        tl.store(target + HALF, second, mask=inside)
    else:
        kv_head = (head - HEADS) % KV_HEADS
        at = ((row // rows_per_sequence) * KV_HEADS + kv_head).to(tl.int64) * capacity + position
        at = at * WIDTH + i
        inside = inside & (position >= 0)
        if is_value:
            tl.store(values_ptr + at, first, mask=inside)
            tl.store(values_ptr + at + HALF, second, mask=inside)
        else:
            tl.store(keys_ptr + at, first, mask=inside)
            tl.store(keys_ptr + at + HALF, second, mask=inside)
