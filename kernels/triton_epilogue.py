"""What follows a linear layer, as kernels of their own: the sum over the parts of a split K, and SwiGLU."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["sum_parts_kernel", "sum_parts_swiglu_kernel"]


@triton.jit
def sum_parts_kernel(
    parts_ptr,
    y_ptr,
    bias_ptr,
    residual_ptr,
    total,
    n_size,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Sum float32 [SPLIT, M, N] over the parts, first to last, add bias [N] and residual [M, N], store y [M, N].

    ``total`` = M N.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    acc = tl.load(parts_ptr + at, mask=inside, other=0.0)
    for part in tl.static_range(1, SPLIT):
        acc += tl.load(parts_ptr + part * total + at, mask=inside, other=0.0)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + at % n_size, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        acc += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sum_parts_swiglu_kernel(
    parts_ptr, y_ptr, total, i_size, SPLIT: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    """Sum [SPLIT, M, 2 I] over the parts, first to last, and store y [M, I] = silu(gate) * up of gate | up.

    ``total`` = M I. The parts are float32, or with SPLIT = 1 of any type.
    """
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    source = at + at // i_size * i_size  # row m begins at 2 I m
    gate = tl.load(parts_ptr + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(parts_ptr + source + i_size, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, SPLIT):
        gate += tl.load(parts_ptr + part * 2 * total + source, mask=inside, other=0.0)
        up += tl.load(parts_ptr + part * 2 * total + source + i_size, mask=inside, other=0.0)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + at, value.to(y_ptr.dtype.element_ty), mask=inside)
