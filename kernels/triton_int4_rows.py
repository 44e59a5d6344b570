"""INT4 linear for rows of activations in blocks of at most 16: the body.

Weights are the tensor cores' left operand, 16 outputs by 16 inputs at a time, and go from memory to it through
registers only. A warp owns R tiles of 16 outputs and every WK-th tile of 128 inputs; WK warps share outputs and add up
at the end, in one order. A row's result does not depend on the rows beside it.

Group sums need no subtraction per weight: sum (q - z) x = sum q x - z sum x, and sum x comes out of the same tensor
cores with a left operand of ones.

Tensors of five and more dimensions write out which thread holds what (Triton gives the last dimension to a thread, the
first to lanes, the next to warps); their products then need no shared memory. The letters: t, g the lane (4 x 8), w
the warp, s the input tile of a step, r the output tile, h the half of an output tile, c 8-row blocks of activations,
e what a warp reads at once: eight rows of 64 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgeprec.kernels.triton_parts import as_operand, fence, finish, prefetch_l2, raw_planes

__all__ = ["int4_rows_kernel"]


@triton.jit
def _right_operand(
    pairs, W: tl.constexpr, S: tl.constexpr, C: tl.constexpr, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr
):
    """Turn int32 pairs [t, g, w, s, c, 4] into the right operand [s w, 32, 8 c]."""
    low = pairs.to(tl.int16).to(X_TYPE, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(X_TYPE, bitcast=True)
    x = tl.join(low, high).reshape((4, 8, W, S, C, 2, 2, 2))
    x = x.permute((3, 2, 6, 0, 5, 7, 4, 1)).reshape((S * W, 32, C * 8))
    return as_operand(x, X_TYPE, USE_PTX)


@triton.jit
def _per_output(values, W: tl.constexpr, S: tl.constexpr, R: tl.constexpr, BLOCKS: tl.constexpr):
    """Turn [t, g, w, s, r, h, BLOCKS] into [s w, 16 r, 1, t, 1, BLOCKS] in float32."""
    rows = values.permute((3, 2, 4, 5, 1, 0, 6)).reshape((S * W, R * 16, 4, BLOCKS)).to(tl.float32)
    return rows[:, :, None, :, None, :]


@triton.jit
def _over_outputs(sums, R: tl.constexpr):
    """Repeat [B, 16, M], whose rows are equal, to [B, 16 R, M]."""
    B: tl.constexpr = sums.shape[0]
    M: tl.constexpr = sums.shape[2]
    return sums.reshape((B, 1, 16, M)).broadcast_to((B, R, 16, M)).reshape((B, R * 16, M))


@triton.jit
def _over_blocks(part, scales, BLOCKS: tl.constexpr):
    """Sum part * scales over the blocks, [.., BLOCKS], in one order.

    The fused products are spelled out: which product of a sum the compiler fuses would else differ between kernels for
    8 and for 16 rows, and with it the last bit.
    """
    B: tl.constexpr = part.shape[0]
    N: tl.constexpr = part.shape[1]
    C: tl.constexpr = part.shape[2]
    scales = tl.broadcast_to(scales, (B, N, C, 4, 2, BLOCKS))
    if BLOCKS == 1:
        total = tl.sum(part * scales, 5)
    elif BLOCKS == 2:
        p0, p1 = tl.split(part)
        s0, s1 = tl.split(scales)
        total = tl.fma(p1, s1, p0 * s0)
    else:
        even, odd = tl.split(part.reshape((B, N, C, 4, 2, 2, 2)))
        p0, p2 = tl.split(even)
        p1, p3 = tl.split(odd)
        even, odd = tl.split(scales.reshape((B, N, C, 4, 2, 2, 2)))
        s0, s2 = tl.split(even)
        s1, s3 = tl.split(odd)
        total = tl.fma(p3, s3, tl.fma(p2, s2, tl.fma(p1, s1, p0 * s0)))
    return total


@triton.jit
def _tile_product(
    words,
    b0,
    b1,
    b2,
    b3,
    scales,
    zeros,
    start,
    W: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    SHARED_X: tl.constexpr,
    X_TYPE: tl.constexpr,
    USE_PTX: tl.constexpr,
):
    """Return the scaled products of one step, float32 [s w, 16 r, c, 4, 2]. Every sum begins at ``start``, a 0.

    b0..b3 are the activations as right operands, 32 inputs each.
    """
    B: tl.constexpr = S * W
    IS_FP16: tl.constexpr = X_TYPE == tl.float16
    UNIT: tl.constexpr = 1.0 / 16777216.0 if IS_FP16 else 1.0  # what a nibble of 1 weighs in an even plane
    ODD: tl.constexpr = 0.0625 if IS_FP16 else 1.0  # what brings an odd plane to the same weight
    OFFSET: tl.constexpr = 0.0 if IS_FP16 else 128.0  # what the planes hold on top
    ones = as_operand(tl.full((B, 16, 32), UNIT, tl.float32), X_TYPE, USE_PTX)
    words = words.reshape((W, S, R, 2, 8, 4, 2, 2, 2))
    if SHARED_X:  # Triton then gives a lane pairs of inputs, else fours: a lane's 16 bytes stay together either way
        words = words.permute((1, 0, 2, 3, 4, 7, 6, 5, 8)).reshape((B, R * 16, 32))
    else:
        words = words.permute((1, 0, 2, 3, 4, 7, 5, 6, 8)).reshape((B, R * 16, 32))
    a0, a1, a2, a3 = raw_planes(words, X_TYPE, USE_PTX)
    zero = tl.zeros((B, R * 16, C * 8), tl.float32) + start
    zero_sums = tl.zeros((B, 16, C * 8), tl.float32) + start
    if BLOCKS == 1:
        even = tl.dot(a2, b2, tl.dot(a0, b0, zero))
        odd = tl.dot(a3, b3, tl.dot(a1, b1, zero))
        sums = tl.dot(ones, b3, tl.dot(ones, b2, tl.dot(ones, b1, tl.dot(ones, b0, zero_sums))))
        part = (even + odd * ODD).reshape((B, R * 16, C, 4, 2, 1))
        sums = _over_outputs(sums, R).reshape((B, R * 16, C, 4, 2, 1))
    elif BLOCKS == 2:
        first = tl.dot(a0, b0, zero) + tl.dot(a1, b1, zero) * ODD
        second = tl.dot(a2, b2, zero) + tl.dot(a3, b3, zero) * ODD
        part = tl.join(first, second).reshape((B, R * 16, C, 4, 2, 2))
        first = _over_outputs(tl.dot(ones, b1, tl.dot(ones, b0, zero_sums)), R)
        second = _over_outputs(tl.dot(ones, b3, tl.dot(ones, b2, zero_sums)), R)
        sums = tl.join(first, second).reshape((B, R * 16, C, 4, 2, 2))
    else:
        part = tl.join(
            tl.join(tl.dot(a0, b0, zero), tl.dot(a2, b2, zero)),
            tl.join(tl.dot(a1, b1, zero) * ODD, tl.dot(a3, b3, zero) * ODD),
        ).reshape((B, R * 16, C, 4, 2, 4))
        sums = tl.join(
            tl.join(_over_outputs(tl.dot(ones, b0, zero_sums), R), _over_outputs(tl.dot(ones, b2, zero_sums), R)),
            tl.join(_over_outputs(tl.dot(ones, b1, zero_sums), R), _over_outputs(tl.dot(ones, b3, zero_sums), R)),
        ).reshape((B, R * 16, C, 4, 2, 4))
    if HAS_ZEROS:
        part -= sums * (_per_output(zeros, W, S, R, BLOCKS) + OFFSET)
    else:
        part -= sums * (8.0 + OFFSET)
    return _over_blocks(part, _per_output(scales, W, S, R, BLOCKS) * (1.0 / UNIT), BLOCKS)


@triton.jit
def _load_pairs(pointers, k_pair, k_size, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=k_pair * 2 < k_size, other=0)


@triton.jit
def _load_lines(
    pointers,
    k,
    k_size,
    W: tl.constexpr,
    S: tl.constexpr,
    C: tl.constexpr,
    EVEN_K: tl.constexpr,
    X_TYPE: tl.constexpr,
    USE_PTX: tl.constexpr,
):
    """Load activations [w, s, c, 8 rows of 32 inputs] as the right operand [s w, 32, 8 c]."""
    x = tl.load(pointers) if EVEN_K else tl.load(pointers, mask=k < k_size, other=0.0)
    x = x.reshape((W, S, C, 8, 4, 2, 2, 2)).permute((1, 0, 6, 5, 4, 7, 2, 3)).reshape((S * W, 32, C * 8))
    return as_operand(x, X_TYPE, USE_PTX)


@triton.jit
def int4_rows_kernel(
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
    K_TILES: tl.constexpr,
    WN: tl.constexpr,
    WK: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    C: tl.constexpr,
    BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
    SHARED_X: tl.constexpr,
    PREFETCH: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    USE_PTX: tl.constexpr,
    USE_PDL: tl.constexpr,
    X_TYPE: tl.constexpr,
    TILE_STEP: tl.constexpr,
    SWIGLU: tl.constexpr,
    PINNED: tl.constexpr,
):
    """Compute 8 C rows of y [M, N] = x [M, K] @ w + bias + residual, those of block ``program_id(0)``.

    x_ptr         fp16 or bf16 [M, K], rows ``x_stride`` (even) apart, 4-byte aligned, 16 for speed
    words_ptr     int16 [N', K_TILES, 16, 32]; scales_ptr fp16, zeros_ptr uint8 [N', K_TILES, 8, 2, BLOCKS]: repack.py
    y_ptr, residual_ptr  [M, N] contiguous and bias_ptr [N], each in x's type or float32

    A program makes 16 WN R outputs with WN WK warps, S input tiles a step and warp; WK S divides K_TILES and WN R
    divides N'. STAGES = 0 unrolls the steps with the next one's loads in registers, PINNED keeps those loads ahead of
    the arithmetic (``fence``); else the weights come through shared memory that many steps ahead, and with SHARED_X
    the activations too. PREFETCH lines per output tile are asked for before the previous kernel ends. The order of a
    sum, and with it its bits, follows from WK, S and SHARED_X alone.

    SWIGLU: N = 2 I, R = 2, and the two tiles of a warp are a gate's and its up's, TILE_STEP = I / 16 tiles apart;
    y [M, I] = silu(gate) * up.
    """
    W: tl.constexpr = WN * WK
    B: tl.constexpr = S * W
    STEPS: tl.constexpr = K_TILES // (WK * S)
    SCALE_ROW: tl.constexpr = 16 * BLOCKS  # values of one tile
    TILES: tl.constexpr = WN if SWIGLU else WN * R  # consecutive output tiles of a program
    first_row = tl.program_id(0) * (C * 8)
    program = tl.program_id(1)
    first = program.to(tl.int64) * TILES
    if USE_PDL:
        gdc_launch_dependents()

    w = tl.arange(0, W)[:, None, None, None, None]
    s = tl.arange(0, S)[None, :, None, None, None]
    r = tl.arange(0, R)[None, None, :, None, None]
    h = tl.arange(0, 2)[None, None, None, :, None]
    e = tl.arange(0, 256)[None, None, None, None, :]
    warp_tile = (w // WK) * (1 if SWIGLU else R)
    words = words_ptr + first * (K_TILES * 512) + (warp_tile * (K_TILES * 512) + (w % WK) * 512 + e)
    words = words + (s * (WK * 512) + r * (TILE_STEP * K_TILES * 512) + h * 256)

    zt = tl.arange(0, 4)[:, None, None, None, None, None, None]
    zg = tl.arange(0, 8)[None, :, None, None, None, None, None]
    zw = tl.arange(0, W)[None, None, :, None, None, None, None]
    zs = tl.arange(0, S)[None, None, None, :, None, None, None]
    zr = tl.arange(0, R)[None, None, None, None, :, None, None]
    zh = tl.arange(0, 2)[None, None, None, None, None, :, None]
    zb = tl.arange(0, BLOCKS)[None, None, None, None, None, None, :]
    scale_tile = (zw // WK) * (1 if SWIGLU else R)
    at = scale_tile * (K_TILES * SCALE_ROW) + (zw % WK) * SCALE_ROW + zg * (2 * BLOCKS) + zt * 0
    at = at + (zs * (WK * SCALE_ROW) + zr * (TILE_STEP * K_TILES * SCALE_ROW) + zh * BLOCKS + zb)
    scales = scales_ptr + first * (K_TILES * SCALE_ROW) + at
    zeros = zeros_ptr + first * (K_TILES * SCALE_ROW) + at

    xt = tl.arange(0, 4)[:, None, None, None, None, None]
    xg = tl.arange(0, 8)[None, :, None, None, None, None]
    xw = tl.arange(0, W)[None, None, :, None, None, None]
    xs = tl.arange(0, S)[None, None, None, :, None, None]
    xc = tl.arange(0, C)[None, None, None, None, :, None]
    xe = tl.arange(0, 4)[None, None, None, None, None, :]
    x_row = tl.minimum(first_row + xc * 8 + xg, m_size - 1)
    k_pair = (xw % WK) * 64 + xt * 4 + xe
    x = x_ptr.to(tl.pointer_type(tl.int32)) + (x_row * (x_stride // 2) + k_pair)
    k_pair = k_pair + xs * (WK * 64)
    x = x + xs * (WK * 64)

    if STAGES == 0:
        v = tl.load(words, cache_modifier=".cg")
    elif USE_PDL and PREFETCH > 0:
        row = tl.arange(0, WN * R)[:, None]
        tile = row // R * (1 if SWIGLU else R) + row % R * TILE_STEP
        lines = tile * (K_TILES * 512) + tl.arange(0, PREFETCH)[None, :] * 64
        prefetch_l2(words_ptr + first * (K_TILES * 512) + lines)
    sv = tl.load(scales)
    zv = tl.load(zeros) if HAS_ZEROS else sv
    if USE_PDL:
        gdc_wait()
    if not SHARED_X:
        x0 = _load_pairs(x, k_pair, k_size, EVEN_K)
        x1 = _load_pairs(x + 16, k_pair + 16, k_size, EVEN_K)
        x2 = _load_pairs(x + 32, k_pair + 32, k_size, EVEN_K)
        x3 = _load_pairs(x + 48, k_pair + 48, k_size, EVEN_K)
    acc = tl.zeros((B, R * 16, C, 4, 2), tl.float32)
    if STAGES == 0:
        for step in tl.static_range(STEPS):
            if step + 1 < STEPS:
                words += S * WK * 512
                scales += S * WK * SCALE_ROW
                zeros += S * WK * SCALE_ROW
                x += S * WK * 64
                k_pair += S * WK * 64
                v_next = tl.load(words, cache_modifier=".cg")
                s_next = tl.load(scales)
                z_next = tl.load(zeros) if HAS_ZEROS else s_next
                y0 = _load_pairs(x, k_pair, k_size, EVEN_K)
                y1 = _load_pairs(x + 16, k_pair + 16, k_size, EVEN_K)
                y2 = _load_pairs(x + 32, k_pair + 32, k_size, EVEN_K)
                y3 = _load_pairs(x + 48, k_pair + 48, k_size, EVEN_K)
            start = fence(USE_PTX and PINNED, W)
            b0 = _right_operand(x0, W, S, C, X_TYPE, USE_PTX)
            b1 = _right_operand(x1, W, S, C, X_TYPE, USE_PTX)
            b2 = _right_operand(x2, W, S, C, X_TYPE, USE_PTX)
            b3 = _right_operand(x3, W, S, C, X_TYPE, USE_PTX)
            acc += _tile_product(
                v, b0, b1, b2, b3, sv, zv, start, W, S, R, C, BLOCKS, HAS_ZEROS, SHARED_X, X_TYPE, USE_PTX
            )
            if step + 1 < STEPS:
                v = v_next
                sv = s_next
                zv = z_next
                x0 = y0
                x1 = y1
                x2 = y2
                x3 = y3
    elif SHARED_X:
        lw = tl.arange(0, W)[:, None, None, None]
        ls = tl.arange(0, S)[None, :, None, None]
        lc = tl.arange(0, C)[None, None, :, None]
        le = tl.arange(0, 256)[None, None, None, :]
        k = ((lw % WK) + ls * WK) * 128 + le % 32 + lc * 0
        lines = x_ptr + (tl.minimum(first_row + lc * 8 + le // 32, m_size - 1) * x_stride + k)
        for step in tl.range(0, STEPS, num_stages=STAGES):
            v = tl.load(words, cache_modifier=".cg")
            b0 = _load_lines(lines, k, k_size, W, S, C, EVEN_K, X_TYPE, USE_PTX)
            b1 = _load_lines(lines + 32, k + 32, k_size, W, S, C, EVEN_K, X_TYPE, USE_PTX)
            b2 = _load_lines(lines + 64, k + 64, k_size, W, S, C, EVEN_K, X_TYPE, USE_PTX)
            b3 = _load_lines(lines + 96, k + 96, k_size, W, S, C, EVEN_K, X_TYPE, USE_PTX)
            more = step + 1 < STEPS
            words += S * WK * 512
            scales += S * WK * SCALE_ROW
            zeros += S * WK * SCALE_ROW
            lines += S * WK * 128
            k += S * WK * 128
            s_next = tl.load(scales, mask=more, other=0.0)
            z_next = tl.load(zeros, mask=more, other=0) if HAS_ZEROS else s_next
            acc += _tile_product(
                v, b0, b1, b2, b3, sv, zv, 0.0, W, S, R, C, BLOCKS, HAS_ZEROS, SHARED_X, X_TYPE, USE_PTX
            )
            sv = s_next
            zv = z_next
    else:
        for step in tl.range(0, STEPS, num_stages=STAGES):
            v = tl.load(words, cache_modifier=".cg")
            more = step + 1 < STEPS
            words += S * WK * 512
            scales += S * WK * SCALE_ROW
            zeros += S * WK * SCALE_ROW
            x += S * WK * 64
            k_pair += S * WK * 64
            s_next = tl.load(scales, mask=more, other=0.0)
            z_next = tl.load(zeros, mask=more, other=0) if HAS_ZEROS else s_next
            inside = (k_pair * 2 < k_size) | EVEN_K
            y0 = tl.load(x, mask=more & inside, other=0)
            y1 = tl.load(x + 16, mask=more & ((k_pair * 2 + 32 < k_size) | EVEN_K), other=0)
            y2 = tl.load(x + 32, mask=more & ((k_pair * 2 + 64 < k_size) | EVEN_K), other=0)
            y3 = tl.load(x + 48, mask=more & ((k_pair * 2 + 96 < k_size) | EVEN_K), other=0)
            b0 = _right_operand(x0, W, S, C, X_TYPE, USE_PTX)
            b1 = _right_operand(x1, W, S, C, X_TYPE, USE_PTX)
            b2 = _right_operand(x2, W, S, C, X_TYPE, USE_PTX)
            b3 = _right_operand(x3, W, S, C, X_TYPE, USE_PTX)
            acc += _tile_product(
                v, b0, b1, b2, b3, sv, zv, 0.0, W, S, R, C, BLOCKS, HAS_ZEROS, SHARED_X, X_TYPE, USE_PTX
            )
            sv = s_next
            zv = z_next
            x0 = y0
            x1 = y1
            x2 = y2
            x3 = y3

    acc = tl.sum(tl.sum(acc.reshape((S, WN, WK, R * 16, C * 8)), 0), 1)  # [WN, 16 R, M]
    m = first_row + tl.arange(0, C * 8)
    if SWIGLU:
        gate, up = tl.split(acc.reshape((WN, 2, 16, C * 8)).permute((0, 2, 3, 1)))
        acc = (gate / (1.0 + tl.exp(-gate)) * up).reshape((WN * 16, C * 8))
        n = program * (WN * 16) + tl.arange(0, WN * 16)
        finish(acc, n, m, y_ptr, bias_ptr, residual_ptr, m_size, n_size // 2, False, False)
    else:
        acc = acc.reshape((WN * R * 16, C * 8))
        n = program * (WN * R * 16) + tl.arange(0, WN * R * 16)
        finish(acc, n, m, y_ptr, bias_ptr, residual_ptr, m_size, n_size, HAS_BIAS, HAS_RESIDUAL)
