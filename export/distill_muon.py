"""Muon: momentum whose matrix is orthogonalized before it is applied (Jordan and others, 2024).

An update's singular values all become about 1, so no direction of a weight is starved. The orthogonal factor comes from
five steps of a quintic Newton-Schulz iteration. Each update is scaled to the root mean square of an AdamW step, 0.2
(Liu and others, 2025), so that one learning rate serves both optimizers. torch's own Muon iterates in BF16, which a CPU
without BF16 instructions does some hundred times slower than FP32; this one iterates in what the device is fast at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "orthogonalize"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01
_UPDATE_RMS = 0.2


class Muon:
    """For matrices [out, in]. Gradients are read from ``.grad``."""

    def __init__(self, matrices: Sequence[nn.Parameter]) -> None:
        self._matrices = list(matrices)
        self._momenta = [torch.zeros_like(matrix, requires_grad=False) for matrix in self._matrices]
        self._groups = _indices_by_shape(self._matrices)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        for group in self._groups:
            trained = [index for index in group if self._matrices[index].grad is not None]
            if trained:
                self._step_together(trained, learning_rate)

    def _step_together(self, indices: Sequence[int], learning_rate: float) -> None:
        """Apply the gradients of matrices of one shape; one product for all of them is what a GPU is fast at."""
        matrices: list[Tensor] = [self._matrices[index] for index in indices]
        gradients: list[Tensor] = [matrix.grad for matrix in matrices if matrix.grad is not None]
        momenta = [self._momenta[index] for index in indices]
        torch._foreach_lerp_(momenta, gradients, 1.0 - _MOMENTUM)
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, _MOMENTUM))  # Nesterov
        scale = _UPDATE_RMS * max(ahead.shape[1:]) ** 0.5
        torch._foreach_mul_(matrices, 1.0 - learning_rate * _WEIGHT_DECAY)
        torch._foreach_add_(matrices, list(orthogonalize(ahead).unbind()), alpha=-learning_rate * scale)

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` takes."""
        return {"momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for momentum, saved in zip(self._momenta, state["momenta"], strict=True):
            momentum.copy_(saved)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices [..., out, in] with the same singular vectors and singular values of 0.7 to 1.2, float32."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x.bfloat16() if x.is_cuda else x.float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    orthogonal: Tensor = (x.mT if is_tall else x).float()
    return orthogonal


def _indices_by_shape(matrices: Sequence[Tensor]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        groups.setdefault(tuple(matrix.shape), []).append(index)
    return list(groups.values())
