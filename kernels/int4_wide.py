"""INT4 linear for more than 16 rows: the launcher."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from edgeprec.kernels.arguments import check_activations, check_output_like
from edgeprec.kernels.epilogue import sum_parts, sum_parts_swiglu
from edgeprec.kernels.repack import TILE_K, DeviceInt4Weight
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_int4_wide import int4_wide_kernel
from edgeprec.kernels.tuning import WideConfig

__all__ = ["int4_wide", "int4_wide_swiglu"]

_ROW_BLOCKS = (16, 32, 64)


def int4_wide(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    config: WideConfig,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ w + bias + residual [M, N] for x fp16 or bf16 [M, K], bias [N], residual [M, N].

    Bias, residual and out are of x's type or float32; residual and out may be one tensor.

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    check_activations(x, k=weight.k)
    shape = (x.shape[0], weight.n)
    check_output_like("the bias", bias, x, (weight.n,))
    check_output_like("the residual", residual, x, shape)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    config = config.fit(k_tiles=weight.k_tiles)
    if config.split == 1:
        _launch(x, weight, config, y, bias, residual)
    else:
        sum_parts(_parts(x, weight, config), y, bias=bias, residual=residual)
    return y


def int4_wide_swiglu(
    x: torch.Tensor, weight: DeviceInt4Weight, config: WideConfig, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return silu(gate) * up [M, I] of gate | up = x @ w, w [K, 2 I].

    Raises:
        KernelError: what ``int4_wide`` raises it for.
    """
    check_activations(x, k=weight.k)
    shape = (x.shape[0], weight.n // 2)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    sum_parts_swiglu(_parts(x, weight, config.fit(k_tiles=weight.k_tiles)), y)
    return y


def _parts(x: torch.Tensor, weight: DeviceInt4Weight, config: WideConfig) -> torch.Tensor:
    parts = torch.empty((config.split, x.shape[0], weight.n), dtype=torch.float32, device=x.device)
    _launch(x, weight, config, parts, None, None)
    return parts


def _launch(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    config: WideConfig,
    y: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    target = target_of(x.device)
    rows = x.shape[0]
    block = next((block for block in _ROW_BLOCKS if rows <= block), _ROW_BLOCKS[-1])
    launch: dict[str, Any] = {"launch_pdl": True} if target.has_dependent_launch else {}
    int4_wide_kernel[(-(-rows // block), -(-weight.n // config.bn), config.split)](
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
        weight.row_tiles,
        K_TILES=weight.k_tiles,
        BN=config.bn,
        BM=block,
        SPLIT=config.split,
        BLOCKS=TILE_K // weight.group_size,
        STAGES=config.stages,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        EVEN_K=weight.k % TILE_K == 0,
        USE_PTX=target.has_ptx,
        USE_PDL=target.has_dependent_launch,
        X_TYPE=tl.float16 if x.dtype is torch.float16 else tl.bfloat16,
        num_warps=config.warps,
        **launch,
    )
