"""The optimizer of a draft: Muon for its matrices, AdamW for its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from edgeprec.export.distill_muon import Muon

__all__ = ["DraftOptimizer"]

_BETAS = (0.9, 0.98)


class DraftOptimizer:
    """Both optimizers as one."""

    def __init__(self, draft: nn.Module, *, learning_rate: float) -> None:
        self._parameters = list(draft.parameters())
        self._learning_rate = learning_rate
        self._muon = Muon([parameter for parameter in self._parameters if parameter.ndim == 2])
        vectors = [parameter for parameter in self._parameters if parameter.ndim != 2]
        self._adamw = torch.optim.AdamW(vectors, lr=learning_rate, betas=_BETAS, weight_decay=0.0)

    def clip(self, largest_norm: float) -> float:
        """Scale the gradients down to ``largest_norm`` together and return their norm before."""
        return float(nn.utils.clip_grad_norm_(self._parameters, largest_norm))

    def step(self, share: float) -> None:
        """Apply the gradients at ``share`` of the learning rate and clear them."""
        self._muon.step(self._learning_rate * share)
        self._adamw.param_groups[0]["lr"] = self._learning_rate * share
        self._adamw.step()
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> list[dict[str, Any]]:
        """Return what ``restore`` takes; it holds the live tensors."""
        return [self._muon.state_dict(), self._adamw.state_dict()]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from a saved state."""
        muon, adamw = states
        self._muon.load_state_dict(muon)
        self._adamw.load_state_dict(adamw)
