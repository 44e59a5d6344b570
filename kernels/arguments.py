"""Checks that every launcher makes of what it is given."""

from __future__ import annotations

import torch

from edgeprec.errors import KernelError

__all__ = ["check_activations", "check_output_like"]

_TYPES = (torch.float16, torch.bfloat16)


def check_activations(x: torch.Tensor, *, k: int, max_rows: int | None = None) -> None:
    """Check activations [M, K], fp16 or bf16, rows contiguous.

    Raises:
        KernelError: another shape, type or layout.
    """
    if x.ndim != 2 or x.shape[1] != k or x.shape[0] < 1:
        raise KernelError(f"a linear got activations {tuple(x.shape)}, expected [M, {k}] with M of 1 or more")
    if max_rows is not None and x.shape[0] > max_rows:
        raise KernelError(f"a linear got {x.shape[0]} rows, expected at most {max_rows}: use the wide kernel")
    if x.dtype not in _TYPES:
        raise KernelError(f"a linear got activations of {x.dtype}, expected float16 or bfloat16")
    if x.stride(1) != 1:
        raise KernelError(f"a linear got activations with strides {x.stride()}, expected contiguous rows")


def check_output_like(name: str, tensor: torch.Tensor | None, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check an optional tensor that must be contiguous, of ``shape``, of x's type or float32, and on x's device.

    Raises:
        KernelError: it is not.
    """
    if tensor is None:
        return
    if tensor.shape != shape or tensor.dtype not in (x.dtype, torch.float32) or tensor.device != x.device:
        raise KernelError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, "
            f"expected {x.dtype} or float32 {shape} on {x.device}"
        )
    if not tensor.is_contiguous():
        raise KernelError(f"{name} has strides {tensor.stride()}, expected a contiguous tensor")
