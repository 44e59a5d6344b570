"""What a draft is trained on: the target's full distribution, with some weight on its most likely token.

    loss = (1 - a) KL(p || q) + a CE(argmax p, q)

p is the target's and q the draft's distribution. KL teaches the distribution, which sampling needs; the second term
spends the draft's small capacity on the token that greedy decoding takes. The gradient with respect to the draft's
logits is q - ((1 - a) p + a onehot), so it is written down instead of recorded, in blocks of rows: a step never holds
more than a block of logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["HeadPair", "LossParts", "distillation_loss"]

_BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class HeadPair:
    """The head [V, D] in the two forms it runs in: the target's and the draft's (which may be rounded to INT4)."""

    target: Tensor
    draft: Tensor


@dataclass(frozen=True, slots=True)
class LossParts:
    """Means over rows, on the device: ``loss``, ``kl_nats``, share of equal argmax; and d loss / d hidden [N, D]."""

    loss: Tensor
    kl_nats: Tensor
    agreement: Tensor
    gradient: Tensor


@torch.no_grad()
def distillation_loss(draft: Tensor, target: Tensor, heads: HeadPair, *, argmax_weight: float) -> LossParts:
    """Compare hidden states of draft and target, both [N, D], after the final norm.

    Logits are computed in the type of the heads. ``gradient`` has the draft's type, whose range it needs.
    """
    gradient = torch.empty_like(draft)
    count = max(1, len(draft))
    sums = torch.zeros(3, dtype=torch.float32, device=draft.device)
    for start in range(0, len(draft), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        block, error = _block(draft[rows].to(heads.draft.dtype), target[rows], heads, argmax_weight)
        gradient[rows] = (error.float() / count).to(draft.dtype)
        sums += block
    loss, kl_nats, agreement = sums / count
    return LossParts(loss, kl_nats, agreement, gradient)


def _block(draft: Tensor, target: Tensor, heads: HeadPair, argmax_weight: float) -> tuple[Tensor, Tensor]:
    """Return the sums (loss, KL, equal argmax) and d sum(loss) / d draft [n, D] of some rows."""
    p = functional.linear(target, heads.target).float()  # [n, V]
    q = functional.linear(draft, heads.draft).float()
    best = p.argmax(-1, keepdim=True)
    equal = (q.argmax(-1, keepdim=True) == best).sum()
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    cross_entropy = -q.gather(-1, best).sum()
    kl_nats = functional.kl_div(q, p, reduction="sum", log_target=True)
    loss = (1.0 - argmax_weight) * kl_nats + argmax_weight * cross_entropy
    wanted = p.exp_().mul_(1.0 - argmax_weight)
    wanted.scatter_add_(-1, best, wanted.new_full(best.shape, argmax_weight))
    error = q.exp_().sub_(wanted).to(draft.dtype)  # d loss / d logits
    return torch.stack((loss, kl_nats, equal.float())), error @ heads.draft
