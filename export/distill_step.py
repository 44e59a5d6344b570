"""One training step: the draft, seen in INT4, against the target's distribution on a batch of text."""

from __future__ import annotations

import math
from functools import partial

import torch

from edgeprec.export.distill_int4 import round_to_int4, see_int4
from edgeprec.export.distill_loss import HeadPair, LossParts, distillation_loss
from edgeprec.export.distill_model import Decoder
from edgeprec.export.distill_optimizer import DraftOptimizer
from edgeprec.export.distill_samples import Samples

__all__ = ["TrainingStep"]

_CLIP = 1.0


class TrainingStep:
    """Draft, target and optimizer. The draft's master weights are float32; activations have the target's type."""

    def __init__(
        self, draft: Decoder, teacher: Decoder, *, group_size: int, learning_rate: float, argmax_weight: float
    ) -> None:
        head = teacher.ends.head
        self.draft = draft
        self.heads = HeadPair(head, round_to_int4(head, group_size=group_size).to(head.dtype))
        self.optimizer = DraftOptimizer(draft, learning_rate=learning_rate)
        self.device = head.device
        self._teacher = teacher
        self._argmax_weight = argmax_weight
        draft.see_weights(partial(see_int4, group_size=group_size))

    def run(self, batch: Samples, *, share: float) -> LossParts | None:
        """Learn from a batch at ``share`` of the learning rate; None, and nothing learned, if it was not finite."""
        parts = self._gradients(batch)
        norm = self.optimizer.clip(_CLIP)
        if not (math.isfinite(norm) and math.isfinite(float(parts.loss))):
            return None
        self.optimizer.step(share)
        return parts

    def _gradients(self, batch: Samples) -> LossParts:
        tokens = torch.from_numpy(batch.tokens).long().to(self.device)
        mask = torch.from_numpy(batch.mask()).to(self.device)
        with torch.no_grad():
            wanted = self._teacher(tokens)[mask]
        hidden = self.draft(tokens)[mask]
        parts = distillation_loss(hidden.detach(), wanted, self.heads, argmax_weight=self._argmax_weight)
        hidden.backward(parts.gradient)
        return parts
