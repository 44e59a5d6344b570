"""Round a weight to INT4 the way export's round-to-nearest does, with gradients that pass straight through.

A draft runs in INT4, so it is trained in INT4: what training sees, blocks of inputs that share a signed FP16 scale, is
exactly what ``quantize_rtn`` makes of the same weight. See ``quantize_grid`` for the grid itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["round_to_int4", "see_int4"]

_FP16 = torch.finfo(torch.float16)
_SMALLEST_SCALE = 2.0**-24  # the smallest FP16 above 0


def see_int4(weight: Tensor, *, group_size: int) -> Tensor:
    """Return ``round_to_int4``; the gradient reaches ``weight`` unchanged (straight-through estimator)."""
    return weight + (round_to_int4(weight.detach(), group_size=group_size) - weight.detach())


def round_to_int4(weight: Tensor, *, group_size: int) -> Tensor:
    """Return the values INT4 holds for ``weight`` [out, in], blocks of ``group_size`` inputs; float32 [out, in]."""
    inputs = weight.shape[1]
    padded = functional.pad(weight.float(), (0, -inputs % group_size))
    blocks = padded.reshape(len(padded), -1, group_size)  # [out, B, G]
    highest = blocks.amax(-1, keepdim=True).clamp_min(0.0)
    lowest = blocks.amin(-1, keepdim=True).clamp_max(0.0)
    scales = torch.maximum(highest / 7.0, lowest / -8.0)
    turned = torch.minimum(highest / -8.0, lowest / 7.0)
    scales = _to_fp16(torch.where(-turned < scales, turned, scales))
    levels = (blocks / scales).round_().clamp_(-8.0, 7.0)
    return (levels * scales).flatten(1)[:, :inputs]


def _to_fp16(scales: Tensor) -> Tensor:
    magnitude = scales.abs().clamp(_SMALLEST_SCALE, _FP16.max).half().float()
    return torch.where(scales == 0.0, torch.ones_like(scales), magnitude.copysign(scales))
