"""Argmax, top-two margin and entropy of each row of logits, reading them once: the bodies.

Each program keeps, of its columns, the largest value with its index, the second largest, sum e^(x - max) and
sum e^(x - max) (x - max); a second kernel joins the programs of a row in one order.

A GPU's maximum passes NaN over (max.f32 gives the other operand), so a row's largest value does not show one. Its sum
does: a NaN or +inf is made NaN there, and a row whose sum is NaN has the index V, which no row of numbers has.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST = tl.constexpr(-1e30)  # stands in for -inf where infinities would be subtracted; e^(LOWEST - max) is 0

__all__ = ["head_join_kernel", "head_parts_kernel"]


@triton.jit
def head_parts_kernel(logits_ptr, parts_ptr, index_ptr, v_size, row_stride, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    """Reduce BLOCK columns of one row.

    logits_ptr [M, V] fp16, bf16 or float32; parts_ptr float32 [M, programs, 4] = max, second, total, weighted;
    index_ptr int32 [M, programs]. Programs: blocks of columns, rows.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    block = tl.program_id(0)
    row = tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + row.to(tl.int64) * row_stride + column, mask=column < v_size, other=-float("inf"))
    x = x.to(tl.float32)
    top = tl.max(x, 0)
    winner = tl.min(tl.where(x == top, column, v_size), 0)
    second = tl.max(tl.where(column == winner, -float("inf"), x), 0)
    shifted = tl.maximum(x, LOWEST) - tl.maximum(top, LOWEST)
    power = tl.where(x < float("inf"), tl.exp(shifted), float("nan"))
    at = row * tl.num_programs(0) + block
    tl.store(parts_ptr + at * 4, top)
    tl.store(parts_ptr + at * 4 + 1, second)
    tl.store(parts_ptr + at * 4 + 2, tl.sum(power, 0))
    tl.store(parts_ptr + at * 4 + 3, tl.sum(power * shifted, 0))
    tl.store(index_ptr + at, winner)


@triton.jit
def head_join_kernel(
    parts_ptr,
    index_ptr,
    argmax_ptr,
    margin_ptr,
    entropy_ptr,
    blocks,
    v_size,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Join ``blocks`` (<= BLOCK) parts of one row: argmax int32, margin and entropy in bits float32, all [M].

    Of a row with NaN or +inf argmax is v_size, and the others mean nothing.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    block = tl.arange(0, BLOCK)
    inside = block < blocks
    at = row * blocks + block
    tops = tl.load(parts_ptr + at * 4, mask=inside, other=-float("inf"))
    seconds = tl.load(parts_ptr + at * 4 + 1, mask=inside, other=-float("inf"))
    totals = tl.load(parts_ptr + at * 4 + 2, mask=inside, other=0.0)
    weighted = tl.load(parts_ptr + at * 4 + 3, mask=inside, other=0.0)
    indices = tl.load(index_ptr + at, mask=inside, other=v_size)
    top = tl.max(tops, 0)
    winner = tl.min(tl.where(tops == top, indices, v_size), 0)
    is_winner = indices == winner
    second = tl.max(tl.where(is_winner, seconds, tops), 0)
    distance = tl.maximum(tops, LOWEST) - tl.maximum(top, LOWEST)
    factor = tl.exp(distance)
    total = tl.sum(totals * factor, 0)
    expected = tl.sum(factor * (weighted + totals * distance), 0) / total
    entropy = tl.log2(total) - expected * 1.4426950408889634
    tl.store(argmax_ptr + row, tl.where(total == total, winner, v_size))
    tl.store(margin_ptr + row, top - second)
    tl.store(entropy_ptr + row, tl.maximum(entropy, 0.0))
