"""INT4 linear for more than 16 rows of activations: the body.

The ordinary tiled product: 32 inputs of a tile's plane lie in memory as a tensor core wants them, so the weights go
through shared memory as they are and become numbers in registers. Split along K into SPLIT parts, summed afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgeprec.kernels.triton_parts import as_operand, exact_planes, finish

__all__ = ["int4_wide_kernel"]


@triton.jit
def _load_x(pointers, is_row, k, k_size, EVEN_K: tl.constexpr, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr):
    x = tl.load(pointers, mask=is_row[None, :] & ((k < k_size)[:, None] | EVEN_K), other=0.0)
    return as_operand(x, X_TYPE, USE_PTX)


@triton.jit
def _zero_offset(pointers, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr):
    return as_operand(8.0 - tl.load(pointers).to(tl.float32), X_TYPE, USE_PTX)[:, None]


@triton.jit
def int4_wide_kernel(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    y_ptr,
    bias_ptr,
    residual_ptr,
    m_size,
    n_size,
    k_size,
    x_stride,
    row_tiles,
    K_TILES: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    USE_PTX: tl.constexpr,
    USE_PDL: tl.constexpr,
    X_TYPE: tl.constexpr,
):
    """Compute BN outputs of BM rows of y [M, N], or part ``program_id(2)`` of it when SPLIT > 1.

    Arguments are those of ``int4_rows_kernel``; ``row_tiles`` is N'. With SPLIT > 1 the result is fp32 [SPLIT, M, N],
    without bias and residual, and SPLIT divides K_TILES. Programs: blocks of rows, outputs, parts.
    """
    part = tl.program_id(2)
    STEPS: tl.constexpr = K_TILES // SPLIT
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = part * (STEPS * 128) + tl.arange(0, 32)
    tile_row = tl.minimum(n, row_tiles * 16 - 1)
    words = words_ptr + (tile_row // 16).to(tl.int64)[:, None] * (K_TILES * 512) + part * (STEPS * 512)
    words = words + ((tile_row % 16) * 32)[:, None] + tl.arange(0, 32)[None, :]
    at = (tile_row // 16) * (K_TILES * 16 * BLOCKS) + ((tile_row % 8) * 2 + tile_row % 16 // 8) * BLOCKS
    at += part * (STEPS * 16 * BLOCKS)
    is_row = m < m_size  # what lies beyond is 0: reading one row many times would crowd one spot of the L2
    x = x_ptr + m[None, :] * x_stride + k[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for _ in tl.range(0, STEPS, num_stages=STAGES):
        a0, a1, a2, a3 = exact_planes(tl.load(words, eviction_policy="evict_first"), X_TYPE, USE_PTX)
        b0 = _load_x(x, is_row, k, k_size, EVEN_K, X_TYPE, USE_PTX)
        b1 = _load_x(x + 32, is_row, k + 32, k_size, EVEN_K, X_TYPE, USE_PTX)
        b2 = _load_x(x + 64, is_row, k + 64, k_size, EVEN_K, X_TYPE, USE_PTX)
        b3 = _load_x(x + 96, is_row, k + 96, k_size, EVEN_K, X_TYPE, USE_PTX)
        if HAS_ZEROS:
            z0 = _zero_offset(zeros_ptr + at, X_TYPE, USE_PTX)
            if BLOCKS == 1:
                z1 = z0
                z2 = z0
                z3 = z0
            elif BLOCKS == 2:
                z1 = z0
                z2 = _zero_offset(zeros_ptr + at + 1, X_TYPE, USE_PTX)
                z3 = z2
            else:
                z1 = _zero_offset(zeros_ptr + at + 1, X_TYPE, USE_PTX)
                z2 = _zero_offset(zeros_ptr + at + 2, X_TYPE, USE_PTX)
                z3 = _zero_offset(zeros_ptr + at + 3, X_TYPE, USE_PTX)
            a0 += z0
            a1 += z1
            a2 += z2
            a3 += z3
        s0 = tl.load(scales_ptr + at).to(tl.float32)[:, None]
        if BLOCKS == 1:
            acc += tl.dot(a3, b3, tl.dot(a2, b2, tl.dot(a1, b1, tl.dot(a0, b0)))) * s0
        elif BLOCKS == 2:
            s1 = tl.load(scales_ptr + at + 1).to(tl.float32)[:, None]
            acc += tl.dot(a1, b1, tl.dot(a0, b0)) * s0 + tl.dot(a3, b3, tl.dot(a2, b2)) * s1
        else:
            s1 = tl.load(scales_ptr + at + 1).to(tl.float32)[:, None]
            s2 = tl.load(scales_ptr + at + 2).to(tl.float32)[:, None]
            s3 = tl.load(scales_ptr + at + 3).to(tl.float32)[:, None]
            acc += tl.dot(a0, b0) * s0 + tl.dot(a1, b1) * s1
            acc += tl.dot(a2, b2) * s2 + tl.dot(a3, b3) * s3
        words += 512
        at += 16 * BLOCKS
        x += 128
        k += 128
    finish(
        acc,
        n,
        m,
        y_ptr + part.to(tl.int64) * m_size * n_size,
        bias_ptr,
        residual_ptr,
        m_size,
        n_size,
        HAS_BIAS and SPLIT == 1,
        HAS_RESIDUAL and SPLIT == 1,
    )
