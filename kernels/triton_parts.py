"""Pieces that the Triton bodies share: how nibbles become numbers, and what Triton itself has no word for.

Nibbles to numbers (``USE_PTX`` says whether inline PTX may be used; the other path gives the same bits):

    fp16   word & 0x000F is read as the subnormal q * 2^-24, word & 0x00F0 as q * 2^-20: one AND each, no subtraction.
           Tensor cores take subnormals and accumulate exactly in float32; the offset goes out with the zero point.
    bf16   has too few bits for that: 0x4300 | q is 128 + q.
    exact  q - 8 through the magic number 0x6400 (fp16) or 0x4300 (bf16), for kernels that pay per weight anyway.

Without PTX, bf16 is computed in float32: Triton's interpreter has no bf16 products.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["as_operand", "exact_planes", "fence", "finish", "prefetch_l2", "raw_planes"]


@triton.jit
def as_operand(x, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr):
    """Return activations in the type that the planes have."""
    if X_TYPE == tl.float16 or USE_PTX:
        return x.to(X_TYPE)
    else:
        return x.to(tl.float32)


@triton.jit
def raw_planes(words, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr):
    """Split int16 words into four planes: fp16 q0 2^-24, q1 2^-20, q2 2^-24, q3 2^-20; bf16 128 + q each."""
    if X_TYPE == tl.float16:
        if USE_PTX:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 w;
                shr.u32 w, $4, 8;
                and.b32 $0, $4, 0x000F000F;
                and.b32 $1, $4, 0x00F000F0;
                and.b32 $2, w, 0x000F000F;
                and.b32 $3, w, 0x00F000F0;
                }""",
                "=r,=r,=r,=r,r",
                [words],
                dtype=(tl.float16,) * 4,
                is_pure=True,
                pack=2,
            )
        else:
            upper = words >> 8
            return (
                (words & 0x000F).to(tl.float16, bitcast=True),
                (words & 0x00F0).to(tl.float16, bitcast=True),
                (upper & 0x000F).to(tl.float16, bitcast=True),
                (upper & 0x00F0).to(tl.float16, bitcast=True),
            )
    else:
        return _magic_planes_bf16(words, USE_PTX)


@triton.jit
def _magic_planes_bf16(words, USE_PTX: tl.constexpr):
    if USE_PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c;
            shr.u32 a, $4, 4;
            shr.u32 b, $4, 8;
            shr.u32 c, $4, 12;
            lop3.b32 $0, $4, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $1, a, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $2, b, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $3, c, 0x000F000F, 0x43004300, 0xEA;
            }""",
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.bfloat16,) * 4,
            is_pure=True,
            pack=2,
        )
    else:
        return (
            ((words & 15) + 128).to(tl.float32),
            (((words >> 4) & 15) + 128).to(tl.float32),
            (((words >> 8) & 15) + 128).to(tl.float32),
            (((words >> 12) & 15) + 128).to(tl.float32),
        )


@triton.jit
def exact_planes(words, X_TYPE: tl.constexpr, USE_PTX: tl.constexpr):
    """Split int16 words into four planes of X_TYPE with the exact values nibble - 8."""
    if X_TYPE == tl.float16:
        if USE_PTX:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 w, one, high, low, a, b, c, d;
                mov.b32 one, 0x64086408;
                mov.b32 high, 0x2C002C00;
                mov.b32 low, 0xD480D480;
                shr.u32 w, $4, 8;
                lop3.b32 a, $4, 0x000F000F, 0x64006400, 0xEA;
                lop3.b32 b, $4, 0x00F000F0, 0x64006400, 0xEA;
                lop3.b32 c, w, 0x000F000F, 0x64006400, 0xEA;
                lop3.b32 d, w, 0x00F000F0, 0x64006400, 0xEA;
                sub.f16x2 $0, a, one;
                fma.rn.f16x2 $1, b, high, low;
                sub.f16x2 $2, c, one;
                fma.rn.f16x2 $3, d, high, low;
                }""",
                "=r,=r,=r,=r,r",
                [words],
                dtype=(tl.float16,) * 4,
                is_pure=True,
                pack=2,
            )
        else:
            return (
                ((words & 15) - 8).to(tl.float16),
                (((words >> 4) & 15) - 8).to(tl.float16),
                (((words >> 8) & 15) - 8).to(tl.float16),
                (((words >> 12) & 15) - 8).to(tl.float16),
            )
    else:
        a, b, c, d = _magic_planes_bf16(words, USE_PTX)
        return a - 136.0, b - 136.0, c - 136.0, d - 136.0


@triton.jit
def fence(USE_PTX: tl.constexpr, NUM_WARPS: tl.constexpr):
    """Return 0.0 after the loads above have been issued, warp by warp.

    The assembler sinks loads into the arithmetic that follows them in the program, which shortens their way to their
    use. A barrier keeps loads above itself, and sums that start from its result keep arithmetic below.
    """
    if USE_PTX:
        if NUM_WARPS <= 8:
            count = tl.inline_asm_elementwise(
                """{
                .reg .pred never;
                .reg .u32 q;
                mov.u32 q, %tid.x;
                shr.u32 q, q, 5;
                add.u32 q, q, 1;
                setp.eq.u32 never, q, 0;
                bar.red.popc.u32 $0, q, 32, never;
                }""",
                "=r",
                [],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        else:
            count = tl.inline_asm_elementwise(
                """{
                .reg .pred never;
                .reg .u32 q;
                mov.u32 q, %tid.x;
                add.u32 q, q, 1;
                setp.eq.u32 never, q, 0;
                barrier.red.popc.u32 $0, 0, never;
                }""",
                "=r",
                [],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        return count.to(tl.float32, bitcast=True)
    else:
        return 0.0


@triton.jit
def prefetch_l2(pointers):
    """Ask for the 128-byte lines at ``pointers`` without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def finish(
    acc,
    n,
    m,
    y_ptr,
    bias_ptr,
    residual_ptr,
    m_size,
    n_size,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Add bias [N] and residual [M, N] to ``acc`` [rows of n, columns of m], round once, store at y [M, N]."""
    inside = (n < n_size)[:, None] & (m < m_size)[None, :]
    offset = m[None, :] * n_size + n[:, None]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < n_size, other=0.0).to(tl.float32)[:, None]
    if HAS_RESIDUAL:
        acc += tl.load(residual_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + offset, acc.to(y_ptr.dtype.element_ty), mask=inside)
