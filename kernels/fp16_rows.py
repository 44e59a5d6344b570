"""FP16 (and bf16) linear with the same bits for a row in any company: the launcher."""

from __future__ import annotations

from typing import Any

import torch

from edgeprec.errors import KernelError
from edgeprec.kernels.arguments import check_activations, check_output_like
from edgeprec.kernels.epilogue import sum_parts, sum_parts_swiglu
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_fp16_rows import fp16_rows_kernel
from edgeprec.kernels.tuning import Fp16Config

__all__ = ["fp16_rows", "fp16_rows_swiglu"]

_LEAST_ROWS = 16  # of a tensor-core product


def fp16_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    config: Fp16Config,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ weight.T + bias + residual [M, N] for x [M, K] and weight [N, K], both fp16 or both bf16.

    Bias, residual and out are of x's type or float32; residual and out may be one tensor.

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    n = _check(x, weight)
    shape = (x.shape[0], n)
    check_output_like("the bias", bias, x, (n,))
    check_output_like("the residual", residual, x, shape)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    if config.split == 1:
        _launch(x, weight, config, y, bias, residual, is_swiglu=False)
    else:
        sum_parts(_parts(x, weight, config), y, bias=bias, residual=residual)
    return y


def fp16_rows_swiglu(
    x: torch.Tensor, weight: torch.Tensor, config: Fp16Config, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return silu(gate) * up [M, I] of gate | up = x @ weight.T, weight [2 I, K]; gate and up stay in float32.

    In one kernel where K is not split and the tiles fit, with the same bits.

    Raises:
        KernelError: what ``fp16_rows`` raises it for.
    """
    shape = (x.shape[0], _check(x, weight) // 2)
    check_output_like("the output", out, x, shape)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    if config.split == 1 and shape[1] % (config.bn // 2) == 0:
        _launch(x, weight, config, y, None, None, is_swiglu=True)
    else:
        sum_parts_swiglu(_parts(x, weight, config), y)
    return y


def _check(x: torch.Tensor, weight: torch.Tensor) -> int:
    if weight.ndim != 2 or weight.dtype is not x.dtype or not weight.is_contiguous():
        raise KernelError(
            f"an FP16 linear got a weight {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()}, "
            f"expected contiguous {x.dtype} [N, K]"
        )
    check_activations(x, k=weight.shape[1])
    return int(weight.shape[0])


def _parts(x: torch.Tensor, weight: torch.Tensor, config: Fp16Config) -> torch.Tensor:
    parts = torch.empty((config.split, x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    _launch(x, weight, config, parts, None, None, is_swiglu=False)
    return parts


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    config: Fp16Config,
    y: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    is_swiglu: bool,
) -> None:
    target = target_of(x.device)
    rows, (n, k) = x.shape[0], weight.shape
    block = min(max(_LEAST_ROWS, 1 << (rows - 1).bit_length()), config.bm)
    steps = -(-k // (config.bk * config.split))
    launch: dict[str, Any] = {"launch_pdl": True} if target.has_dependent_launch else {}
    fp16_rows_kernel[(-(-rows // block), -(-n // config.bn), config.split)](
        x,
        weight,
        y,
        y if bias is None else bias,
        y if residual is None else residual,
        rows,
        n,
        k,
        x.stride(0),
        K_STEPS=steps,
        BN=config.bn,
        BK=config.bk,
        BM=block,
        SPLIT=config.split,
        STAGES=config.stages,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        EVEN_K=k == steps * config.bk * config.split,
        SWIGLU=is_swiglu,
        USE_PDL=target.has_dependent_launch,
        num_warps=config.warps,
        **launch,
    )
