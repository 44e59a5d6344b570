"""The kernels in plain torch, for a CPU and for a GPU without Triton: correct on any device, fast on none."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from edgeprec.errors import KernelError
from edgeprec.kernels.repack import ROWS_PER_TILE, TILE_K, DeviceInt4Weight

__all__ = ["HeadRow", "dequantize", "fp16_linear", "head_statistics", "int4_linear", "swiglu"]

_ROW_TILE = 16
_LOG2_E = 1.4426950408889634


class HeadRow(NamedTuple):
    """Statistics of each row of logits, on the device of the logits."""

    argmax: torch.Tensor  # int32 [M], the lowest index of a tie
    margin: torch.Tensor  # float32 [M], largest logit minus the second largest
    entropy_bits: torch.Tensor  # float32 [M], of softmax(logits)


def dequantize(weight: DeviceInt4Weight) -> torch.Tensor:
    """Return the weight [N, K] in float32, exact."""
    words = weight.words.to(torch.int32)  # [N', K', 16, 32]
    levels = torch.stack([(words >> shift) & 15 for shift in (0, 4, 8, 12)], dim=3).float()  # [N', K', 16, 4, 32]
    levels = levels - (8.0 if weight.zeros is None else _per_input(weight.zeros, levels))
    levels = levels * _per_input(weight.scales, levels)
    rows = weight.row_tiles * ROWS_PER_TILE
    return levels.permute(0, 2, 1, 3, 4).reshape(rows, weight.k_tiles * TILE_K)[: weight.n, : weight.k]


def _per_input(values: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Spread [N', K', 8, 2, S] over ``levels`` [N', K', 16, 4, 32]: a tile's S blocks share its four planes."""
    rows = values.float().permute(0, 1, 3, 2, 4).flatten(2, 3)  # [N', K', 16, S]
    return rows.repeat_interleave(4 // rows.shape[-1], dim=-1).unsqueeze(-1).expand_as(levels)


def int4_linear(
    x: torch.Tensor,
    weight: DeviceInt4Weight,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ w + bias + residual [M, N] in float32 for x [M, K]."""
    return fp16_linear(x, dequantize(weight), bias=bias, residual=residual)


def fp16_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ weight.T + bias + residual [M, N] in float32 for weight [N, K].

    Rows run in tiles of 16, so that the library's choice of algorithm never depends on how many there are.
    """
    rows = x.shape[0]
    padded = functional.pad(x.float(), (0, 0, 0, -rows % _ROW_TILE))
    weight, bias = weight.float(), None if bias is None else bias.float()
    starts = range(0, rows, _ROW_TILE)
    tiles = [functional.linear(padded[start : start + _ROW_TILE], weight, bias) for start in starts]
    result = torch.cat(tiles)[:rows]
    return result if residual is None else result + residual.float()


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [M, I] in float32 for gate | up [M, 2 I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return functional.silu(gate) * up


def head_statistics(logits: torch.Tensor) -> HeadRow:
    """Return argmax, margin and entropy of each row of logits [M, V]. A logit of -inf is a token ruled out.

    The entropy of a row with NaN or +inf is NaN, by which an engine knows it.

    Raises:
        KernelError: fewer than two logits in a row.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise KernelError(f"head statistics got logits {tuple(logits.shape)}, expected [M, V] with V of 2 or more")
    values = logits.float()
    top = values.topk(2, dim=1).values
    shifted = values - top[:, :1]
    powers = shifted.exp()
    total = powers.sum(dim=1)
    expected = (powers * shifted.clamp(min=-1e4)).sum(dim=1) / total
    entropy = (total.log2() - expected * _LOG2_E).clamp(min=0.0)
    return HeadRow(argmax=values.argmax(dim=1).to(torch.int32), margin=top[:, 0] - top[:, 1], entropy_bits=entropy)
