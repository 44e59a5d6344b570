"""INT4 linear for few rows, in blocks of 16: the launcher. Bits of a row do not depend on the other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton.language as tl
from torch.nn import functional

from edgeprec.errors import KernelError
from edgeprec.kernels.arguments import check_activations, check_output_like
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_int4_rows import int4_rows_kernel
from edgeprec.kernels.tuning import RowsConfig

__all__ = ["MAX_ROWS", "int4_rows", "int4_rows_swiglu"]

MAX_ROWS = 64  # above, reading the weights once for every 16 rows is the wrong thing to do
_BLOCK = 16
_COLUMNS = 8  # rows of activations of one tensor-core product


def int4_rows(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    config: RowsConfig,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ w + bias + residual [M, N] for x fp16 or bf16 [M, K], 1 <= M <= 64, bias [N], residual [M, N].

    Bias, residual and out are of x's type or float32; residual and out may be one tensor.

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    check_activations(x, k=weight.k, max_rows=MAX_ROWS)
    shape = (x.shape[0], weight.n)
    check_output_like("the bias", bias, x, (weight.n,))
    check_output_like("the residual", residual, x, shape)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    config = config.fit(row_tiles=weight.row_tiles, k_tiles=weight.k_tiles)
    programs = weight.row_tiles // (config.wn * config.r)
    _launch(x, weight, config, y, bias, residual, programs=programs, tile_step=1, is_swiglu=False)
    return y


def int4_rows_swiglu(
    x: torch.Tensor, weight: DeviceInt4Weight, config: RowsConfig, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return silu(gate) * up [M, I] of gate | up = x @ w, w [K, 2 I], without storing gate and up.

    Raises:
        KernelError: I is not a multiple of 16, or what ``int4_rows`` raises it for.
    """
    check_activations(x, k=weight.k, max_rows=MAX_ROWS)
    if weight.n % (2 * ROWS_PER_TILE):
        raise KernelError(f"fused SwiGLU got {weight.n} outputs, expected gate and up of a multiple of 16 each")
    shape = (x.shape[0], weight.n // 2)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    half = weight.row_tiles // 2
    paired = _pair(config.fit(row_tiles=weight.row_tiles, k_tiles=weight.k_tiles), half)
    _launch(x, weight, paired, y, None, None, programs=half // paired.wn, tile_step=half, is_swiglu=True)
    return y


def _pair(config: RowsConfig, half: int) -> RowsConfig:
    """Return sizes whose warps own one tile of gate and one of up. WK and S stay: they fix the bits."""
    wn = config.wn
    while half % wn:
        wn //= 2
    return replace(config, wn=wn, r=2)


def _launch(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    config: RowsConfig,
    y: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    programs: int,
    tile_step: int,
    is_swiglu: bool,
) -> None:
    target = target_of(x.device)
    if weight.k % 2 or x.stride(0) % 2:  # the kernel reads pairs
        x = functional.pad(x, (0, weight.k % 2)).contiguous()
    launch: dict[str, Any] = {"launch_pdl": True} if target.has_dependent_launch else {}
    rows = x.shape[0]
    int4_rows_kernel[(-(-rows // _BLOCK), programs)](
        x,
        weight.words,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        y,
        y if bias is None else bias,
        y if residual is None else residual,
        rows,
        weight.n,
        weight.k,
        x.stride(0),
        K_TILES=weight.k_tiles,
        WN=config.wn,
        WK=config.wk,
        R=config.r,
        S=config.s,
        C=-(-min(rows, _BLOCK) // _COLUMNS),
        BLOCKS=TILE_K // weight.group_size,
        STAGES=config.stages,
        SHARED_X=config.shared_x,
        PREFETCH=config.prefetch,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        EVEN_K=weight.k % TILE_K == 0,
        USE_PTX=target.has_ptx,
        USE_PDL=target.has_dependent_launch,
        X_TYPE=tl.float16 if x.dtype is torch.float16 else tl.bfloat16,
        TILE_STEP=tile_step,
        SWIGLU=is_swiglu,
        PINNED=config.pinned,
        num_warps=config.wn * config.wk,
        **launch,
    )
