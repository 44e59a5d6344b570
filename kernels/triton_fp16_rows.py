"""FP16 (and bf16) linear whose rows do not depend on each other: the body.

Every row is one column of a tensor-core product whose K order is fixed by BK and SPLIT alone, so its bits are the same
whether it runs alone, with fifteen others or in a batch of 64. cuBLAS picks another algorithm for every M.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from edgeprec.kernels.triton_parts import finish

__all__ = ["fp16_rows_kernel"]


@triton.jit
def fp16_rows_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    bias_ptr,
    residual_ptr,
    m_size,
    n_size,
    k_size,
    x_stride,
    K_STEPS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    SWIGLU: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Compute BN outputs of BM rows of y [M, N] = x [M, K] @ w [N, K]^T + bias + residual.

    x_ptr  fp16 or bf16 [M, K], rows ``x_stride`` apart; w_ptr [N, K] contiguous, both 16-byte aligned for speed
    y_ptr, residual_ptr [M, N] contiguous and bias_ptr [N], each in the same type or float32

    With SPLIT > 1 part ``program_id(2)``, float32 [SPLIT, M, N] without bias and residual. EVEN_K: the SPLIT parts of
    K_STEPS steps of BK cover K exactly.

    Programs: blocks of rows, outputs, parts; those that share weights are neighbours, so that these are read once.

    SWIGLU: N = 2 I, SPLIT = 1, half of a program's outputs are a gate's, half their up's; y [M, I] = silu(gate) * up.
    """
    part = tl.program_id(2)
    first_k = part * (K_STEPS * BK)
    if SWIGLU:
        HALF: tl.constexpr = BN // 2
        j = tl.arange(0, BN)
        n = tl.program_id(1) * HALF + tl.arange(0, HALF)
        output = tl.program_id(1) * HALF + j % HALF + j // HALF * (n_size // 2)
    else:
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        output = tl.minimum(n, n_size - 1)
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = first_k + tl.arange(0, BK)
    w = w_ptr + output.to(tl.int64)[:, None] * k_size + k[None, :]
    is_row = (m < m_size)[None, :]  # what lies beyond is 0: reading one row many times would crowd one spot of the L2
    x = x_ptr + m[None, :] * x_stride + k[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for _ in tl.range(0, K_STEPS, num_stages=STAGES):
        if EVEN_K:
            a = tl.load(w, eviction_policy="evict_first")
            b = tl.load(x, mask=is_row, other=0.0)
        else:
            a = tl.load(w, mask=(k < k_size)[None, :], other=0.0, eviction_policy="evict_first")
            b = tl.load(x, mask=is_row & (k < k_size)[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
        w += BK
        x += BK
        k += BK
    if SWIGLU:
        gate, up = tl.split(acc.reshape((2, HALF, BM)).permute((1, 2, 0)))
        acc = gate / (1.0 + tl.exp(-gate)) * up
        n_size = n_size // 2
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
