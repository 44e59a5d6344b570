"""What follows a linear layer, as kernels of their own: the launchers."""

from __future__ import annotations

from typing import Any

import torch

from edgeprec.errors import KernelError
from edgeprec.kernels.target import target_of
from edgeprec.kernels.triton_epilogue import sum_parts_kernel, sum_parts_swiglu_kernel

__all__ = ["sum_parts", "sum_parts_swiglu", "swiglu"]

_BLOCK = 1024
_NUM_WARPS = 4


def sum_parts(
    parts: torch.Tensor, out: torch.Tensor, *, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> None:
    """Store the sum of float32 [S, M, N] over S, first to last, plus bias [N] and residual [M, N], in out [M, N]."""
    target = target_of(out.device)
    sum_parts_kernel[(-(-out.numel() // _BLOCK),)](
        parts,
        out,
        out if bias is None else bias,
        out if residual is None else residual,
        out.numel(),
        out.shape[1],
        SPLIT=parts.shape[0],
        BLOCK=_BLOCK,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        USE_PDL=target.has_dependent_launch,
        num_warps=_NUM_WARPS,
        **_launch_options(target.has_dependent_launch),
    )


def sum_parts_swiglu(parts: torch.Tensor, out: torch.Tensor) -> None:
    """Store silu(gate) * up of the sum of [S, M, 2 I] over S, first to last, in out [M, I]."""
    target = target_of(out.device)
    sum_parts_swiglu_kernel[(-(-out.numel() // _BLOCK),)](
        parts,
        out,
        out.numel(),
        out.shape[1],
        SPLIT=parts.shape[0],
        BLOCK=_BLOCK,
        USE_PDL=target.has_dependent_launch,
        num_warps=_NUM_WARPS,
        **_launch_options(target.has_dependent_launch),
    )


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [M, I] in gate_up's type for gate | up [M, 2 I], contiguous.

    Raises:
        KernelError: another shape or layout.
    """
    if gate_up.ndim != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise KernelError(f"SwiGLU got {tuple(gate_up.shape)}, expected contiguous [M, 2 I], gate and up side by side")
    out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    sum_parts_swiglu(gate_up.unsqueeze(0), out)
    return out


def _launch_options(has_dependent_launch: bool) -> dict[str, Any]:
    return {"launch_pdl": True} if has_dependent_launch else {}
