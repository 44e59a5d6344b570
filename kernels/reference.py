"""What every kernel computes, in plain numpy: the specification that tests hold the others to.

Sums run in float64, so the error of a kernel under test is its own. Nothing here is fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeprec.errors import KernelError
from edgeprec.kernels.layout import Int4Weight, unpack_nibbles

__all__ = ["HeadStatistics", "dequantize", "head_statistics", "int4_linear", "rms_norm", "swiglu"]

Floats = npt.NDArray[np.floating[Any]]


class HeadStatistics(NamedTuple):
    """What a decoder needs to know of each row of logits."""

    argmax: npt.NDArray[np.int64]  # [M], the lowest index of a tie
    margin: npt.NDArray[np.float64]  # [M], largest logit minus the second largest
    entropy_bits: npt.NDArray[np.float64]  # [M], of softmax(logits)


def dequantize(weight: Int4Weight) -> npt.NDArray[np.float32]:
    """Return the weight [K, N]: q * scale, or (q - zero) * scale. Exact: 11 bits times 4 fit into float32."""
    levels = unpack_nibbles(weight.packed, n=weight.n, signed=weight.zeros is None).astype(np.float32)
    if weight.zeros is not None:
        levels -= _per_input(unpack_nibbles(weight.zeros, n=weight.n, signed=False), weight)
    levels *= _per_input(weight.scales, weight)
    return levels


def _per_input(values: npt.NDArray[Any], weight: Int4Weight) -> npt.NDArray[np.float32]:
    """Repeat one row per block [ceil(K / G), N] to one row per input [K, N]."""
    return np.repeat(values.astype(np.float32), weight.group_size, axis=0)[: weight.k]


def int4_linear(x: Floats, weight: Int4Weight, bias: Floats | None = None) -> npt.NDArray[np.float64]:
    """Return x @ w + bias for x [M, K] and bias [N]: float64 [M, N].

    Raises:
        KernelError: ``x`` or ``bias`` does not fit the weight.
    """
    if x.ndim != 2 or x.shape[1] != weight.k:
        raise KernelError(f"INT4 linear got inputs {x.shape}, expected [M, {weight.k}]")
    if bias is not None and bias.shape != (weight.n,):
        raise KernelError(f"INT4 linear got a bias {bias.shape}, expected ({weight.n},)")
    output = x.astype(np.float64) @ dequantize(weight).astype(np.float64)
    return output if bias is None else output + bias.astype(np.float64)


def swiglu(gate_up: Floats) -> npt.NDArray[np.float64]:
    """Return silu(gate) * up for gate | up [M, 2 I]: float64 [M, I].

    Raises:
        KernelError: the width is odd.
    """
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise KernelError(f"SwiGLU got inputs {gate_up.shape}, expected [M, 2 I], gate and up side by side")
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    return gate * _sigmoid(gate) * up


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return 1 / (1 + e^-x) without overflow on either side."""
    shrunk = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, shrunk) / (1.0 + shrunk)


def rms_norm(x: Floats, weight: Floats, *, eps: float) -> npt.NDArray[np.float64]:
    """Return x / sqrt(mean(x^2) + eps) * weight for x [M, D] and weight [D]: float64 [M, D].

    Raises:
        KernelError: ``weight`` does not fit ``x``.
    """
    if x.ndim != 2 or weight.shape != x.shape[1:]:
        raise KernelError(f"RMS norm got inputs {x.shape} and weight {weight.shape}, expected [M, D] and [D]")
    values = x.astype(np.float64)
    scale: npt.NDArray[np.float64] = 1.0 / np.sqrt(np.mean(values**2, axis=1, keepdims=True) + eps)
    return values * scale * weight.astype(np.float64)


def head_statistics(logits: Floats) -> HeadStatistics:
    """Return argmax, margin and entropy of each row of logits [M, V]. A logit of -inf is a token ruled out.

    Entropy is log2(Z) - sum p (x - max) / ln 2 with Z = sum exp(x - max), which neither overflows nor takes the
    logarithm of 0.

    Raises:
        KernelError: fewer than two logits in a row, a NaN, a +inf, or nothing but -inf.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise KernelError(f"head statistics got logits {logits.shape}, expected [M, V] with V of 2 or more")
    values = logits.astype(np.float64)
    top = values.max(axis=1, keepdims=True)  # NaN where a row has one
    if not np.isfinite(top).all():
        raise KernelError(
            "head statistics got a row with NaN, +inf or nothing but -inf, expected finite logits or -inf"
        )
    shifted = values - top
    powers = np.exp(shifted)
    total = powers.sum(axis=1)
    expected = np.where(powers > 0.0, powers * np.where(powers > 0.0, shifted, 0.0), 0.0).sum(axis=1) / total
    second = np.partition(values, -2, axis=1)[:, -2]
    return HeadStatistics(
        argmax=values.argmax(axis=1),
        margin=top[:, 0] - second,
        entropy_bits=np.maximum(np.log2(total) - expected / np.log(2.0), 0.0),
    )
