"""The one door to the kernels: picks Triton or plain torch by device, and the kernel by shape and table.

Heavy modules are imported on first use. Nothing is tuned here, so calls may be captured into a CUDA graph after one
call of the same shape outside of it. On a GPU with dependent launch, weights are read before the previous kernel in the
stream has ended: synchronize once between writing weights and the first call.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata

import torch

from edgeprec.kernels import torch_fallback
from edgeprec.kernels.repack import ROWS_PER_TILE, DeviceInt4Weight
from edgeprec.kernels.target import KernelTarget, target_of
from edgeprec.kernels.torch_fallback import HeadRow
from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig, fp16_config, int4_config

__all__ = [
    "KernelBackend",
    "fp16_linear",
    "fp16_swiglu",
    "head_statistics",
    "int4_linear",
    "int4_swiglu",
    "kernel_backend",
]

_MIN_TRITON = (3, 4)
_MIN_CAPABILITY = (8, 0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KernelBackend:
    """What computes on a device; ``reason`` says why it is not Triton, or is empty."""

    name: str  # "triton" or "torch"
    reason: str = ""


@lru_cache
def kernel_backend(device: torch.device) -> KernelBackend:
    """Return what computes on ``device``. A GPU that has to do without Triton is warned of once."""
    if device.type != "cuda":
        return KernelBackend("torch", "Triton kernels run on GPUs only")
    reason = _why_no_triton(device)
    if reason:
        logger.warning("INT4 and FP16 layers run in plain torch, slowly: %s", reason)
        return KernelBackend("torch", reason)
    return KernelBackend("triton")


def _why_no_triton(device: torch.device) -> str:
    wanted = ".".join(map(str, _MIN_TRITON))
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed, {wanted} or later is needed"
    version = metadata.version("triton")
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_TRITON:
        return f"Triton is {version}, {wanted} or later is needed"
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _MIN_CAPABILITY:
        return f"the GPU is SM {capability[0]}{capability[1]}, SM 80 or later is needed"
    return ""


def int4_linear(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ w + bias + residual [M, N] for x [M, K], bias [N] and residual [M, N].

    Bias, residual and out are of x's type or float32; residual and out may be one tensor. Up to 16 rows a row's bits
    do not depend on the others, except where the table has the wide kernel.

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    if kernel_backend(x.device).name == "torch":
        return _into(out, torch_fallback.int4_linear(x, weight, bias=bias, residual=residual), x)
    config = _int4_config(x, weight)
    if isinstance(config, WideConfig):
        from edgeprec.kernels.int4_wide import int4_wide

        return int4_wide(x, weight, config, bias=bias, residual=residual, out=out)
    from edgeprec.kernels.int4_rows import int4_rows

    return int4_rows(x, weight, config, bias=bias, residual=residual, out=out)


def int4_swiglu(x: torch.Tensor, weight: DeviceInt4Weight, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return silu(gate) * up [M, I] of gate | up = x @ w, w [K, 2 I].

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    if kernel_backend(x.device).name == "torch":
        return _into(out, torch_fallback.swiglu(torch_fallback.int4_linear(x, weight)), x)
    config = _int4_config(x, weight)
    if isinstance(config, WideConfig):
        from edgeprec.kernels.int4_wide import int4_wide_swiglu

        return int4_wide_swiglu(x, weight, config, out=out)
    if weight.n % (2 * ROWS_PER_TILE):
        from edgeprec.kernels.epilogue import swiglu
        from edgeprec.kernels.int4_rows import int4_rows

        return _into(out, swiglu(int4_rows(x, weight, config)), x)
    from edgeprec.kernels.int4_rows import int4_rows_swiglu

    return int4_rows_swiglu(x, weight, config, out=out)


def fp16_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ weight.T + bias + residual [M, N] for weight [N, K]; a row's bits never depend on the others.

    Bias, residual and out are of x's type or float32; residual and out may be one tensor.

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    if kernel_backend(x.device).name == "torch":
        return _into(out, torch_fallback.fp16_linear(x, weight, bias=bias, residual=residual), x)
    from edgeprec.kernels.fp16_rows import fp16_rows

    config = _cached_fp16_config(target_of(x.device), *weight.shape, x.shape[0])
    return fp16_rows(x, weight, config, bias=bias, residual=residual, out=out)


def fp16_swiglu(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return silu(gate) * up [M, I] of gate | up = x @ weight.T, weight [2 I, K].

    Raises:
        KernelError: a shape, type or layout that the kernel does not take.
    """
    if kernel_backend(x.device).name == "torch":
        return _into(out, torch_fallback.swiglu(torch_fallback.fp16_linear(x, weight)), x)
    from edgeprec.kernels.fp16_rows import fp16_rows_swiglu

    config = _cached_fp16_config(target_of(x.device), *weight.shape, x.shape[0])
    return fp16_rows_swiglu(x, weight, config, out=out)


def head_statistics(logits: torch.Tensor, *, out: HeadRow | None = None) -> HeadRow:
    """Return argmax, margin and entropy in bits of each row of logits [M, V], on their device, in ``out`` if given.

    Raises:
        KernelError: another shape or layout.
    """
    if kernel_backend(logits.device).name == "torch":
        found = torch_fallback.head_statistics(logits)
        return found if out is None else HeadRow(*(into.copy_(part) for into, part in zip(out, found, strict=True)))
    from edgeprec.kernels.head import head_statistics as fused

    return fused(logits, out=out)


def _int4_config(x: torch.Tensor, weight: DeviceInt4Weight) -> RowsConfig | WideConfig:
    target = target_of(x.device)
    return _cached_int4_config(
        target, weight.n, weight.k, weight.group_size, weight.row_tiles, weight.k_tiles, x.shape[0]
    )


@cache
def _cached_fp16_config(target: KernelTarget, n: int, k: int, rows: int) -> Fp16Config:
    return fp16_config(
        target.name,
        n=n,
        k=k,
        rows=rows,
        multiprocessors=target.multiprocessors,
        shared_bytes=target.shared_bytes,
    )


@cache
def _cached_int4_config(
    target: KernelTarget, n: int, k: int, group_size: int, row_tiles: int, k_tiles: int, rows: int
) -> RowsConfig | WideConfig:
    return int4_config(
        target.name,
        n=n,
        k=k,
        rows=rows,
        group_size=group_size,
        row_tiles=row_tiles,
        k_tiles=k_tiles,
        multiprocessors=target.multiprocessors,
    )


def _into(out: torch.Tensor | None, value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Round once, to the type of ``out`` or else of x."""
    return value.to(x.dtype) if out is None else out.copy_(value)
