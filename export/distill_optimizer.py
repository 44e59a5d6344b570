"""The optimizer of a draft: Muon for its matrices, AdamW for its vectors.

Muon orthogonalizes each matrix's momentum (Jordan and others, 2024), scaled here to AdamW's step size, so that one
learning rate serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["DraftOptimizer"]

_MUON_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01
_BETAS = (0.9, 0.98)


class DraftOptimizer:
    """Both optimizers as one."""

    def __init__(self, draft: nn.Module, *, learning_rate: float) -> None:
        parameters = list(draft.parameters())
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        vectors = [parameter for parameter in parameters if parameter.ndim != 2]
        self._learning_rate = learning_rate
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=learning_rate,
                weight_decay=_WEIGHT_DECAY,
                momentum=_MUON_MOMENTUM,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(vectors, lr=learning_rate, betas=_BETAS, weight_decay=0.0),
        ]
        self._parameters = parameters

    def clip(self, largest_norm: float) -> float:
        """Scale the gradients down to ``largest_norm`` together and return their norm before."""
        return float(nn.utils.clip_grad_norm_(self._parameters, largest_norm))

    def step(self, share: float) -> None:
        """Apply the gradients at ``share`` of the learning rate and clear them."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._learning_rate * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return what ``restore`` takes."""
        return [part.state_dict() for part in self._parts]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from a saved state."""
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
