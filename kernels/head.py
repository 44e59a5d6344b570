"""Argmax, top-two margin and entropy of each row of logits in one reading: the launcher."""

from __future__ import annotations

from typing import Any

import torch

from edgeprec.errors import KernelError
from edgeprec.kernels.target import target_of
from edgeprec.kernels.torch_fallback import HeadRow
from edgeprec.kernels.triton_head import head_join_kernel, head_parts_kernel

__all__ = ["head_statistics"]

_BLOCK = 2048
_NUM_WARPS = 4


def head_statistics(logits: torch.Tensor, *, out: HeadRow | None = None) -> HeadRow:
    """Return argmax int32, margin and entropy in bits float32, all [M], of logits [M, V]; nothing leaves the device.

    They are written into ``out`` where it is given: contiguous tensors of these types.

    Logits are fp16, bf16 or float32 with contiguous rows, finite or -inf (a token ruled out). The lowest index of a
    tie wins. A row with NaN or +inf has V as its argmax, and its margin and entropy mean nothing.

    Raises:
        KernelError: another shape or layout.
    """
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise KernelError(f"head statistics got logits {tuple(logits.shape)}, expected [M, V] with V of 2 or more")
    if logits.stride(1) != 1:
        raise KernelError(f"head statistics got logits with strides {logits.stride()}, expected contiguous rows")
    target = target_of(logits.device)
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    parts = torch.empty((rows, blocks, 4), dtype=torch.float32, device=logits.device)
    indices = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    found = _empty(rows, logits.device) if out is None else out
    launch: dict[str, Any] = {"launch_pdl": True} if target.has_dependent_launch else {}
    head_parts_kernel[(blocks, rows)](
        logits,
        parts,
        indices,
        vocabulary,
        logits.stride(0),
        BLOCK=_BLOCK,
        USE_PDL=target.has_dependent_launch,
        num_warps=_NUM_WARPS,
        **launch,
    )
    head_join_kernel[(rows,)](
        parts,
        indices,
        *found,
        blocks,
        vocabulary,
        BLOCK=max(2, 1 << (blocks - 1).bit_length()),
        USE_PDL=target.has_dependent_launch,
        num_warps=1,
        **launch,
    )
    return found


def _empty(rows: int, device: torch.device) -> HeadRow:
    return HeadRow(
        argmax=torch.empty(rows, dtype=torch.int32, device=device),
        margin=torch.empty(rows, dtype=torch.float32, device=device),
        entropy_bits=torch.empty(rows, dtype=torch.float32, device=device),
    )
