"""The loss and its written-down gradient, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from edgeprec.export import distill_loss
from edgeprec.export.distill_loss import HeadPair, distillation_loss

ROWS, WIDTH, VOCABULARY = 37, 12, 50


def tensors() -> tuple[torch.Tensor, torch.Tensor, HeadPair]:
    """Return hidden states of draft and target and two heads."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, WIDTH), (ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY, WIDTH))
    draft, target, head, rounded = (torch.randn(shape, generator=generator) for shape in shapes)
    return draft, target, HeadPair(head, rounded)


def recorded(draft: torch.Tensor, target: torch.Tensor, heads: HeadPair, weight: float) -> torch.Tensor:
    """Compute the loss with recorded operations."""
    p, q = (target @ heads.target.T).log_softmax(-1), (draft @ heads.draft.T).log_softmax(-1)
    kl = functional.kl_div(q, p, reduction="batchmean", log_target=True)
    return (1.0 - weight) * kl + weight * functional.cross_entropy(draft @ heads.draft.T, p.argmax(-1))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("block_rows", [5, 8192])
def test_loss_and_gradient_are_those_of_autograd(
    weight: float, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or in blocks, for every mix of the two terms."""
    monkeypatch.setattr(distill_loss, "_BLOCK_ROWS", block_rows)
    draft, target, heads = tensors()
    leaf = draft.clone().requires_grad_(True)
    expected = recorded(leaf, target, heads, weight)
    expected.backward()
    found = distillation_loss(draft, target, heads, argmax_weight=weight)
    torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.gradient, leaf.grad, rtol=1e-4, atol=1e-6)


def test_equal_distributions_have_no_divergence() -> None:
    """KL is 0, every argmax agrees, and nothing is to be learned."""
    _, target, heads = tensors()
    found = distillation_loss(target, target, HeadPair(heads.target, heads.target), argmax_weight=0.0)
    assert float(found.kl_nats) == pytest.approx(0.0, abs=1e-6)
    assert float(found.agreement) == 1.0
    assert float(found.gradient.abs().max()) < 1e-6


def test_the_gradient_keeps_the_drafts_range() -> None:
    """A mean over many rows is below FP16's smallest number: heads in FP16 must not lose it."""
    draft, target, heads = tensors()
    halves = HeadPair(heads.target.half(), heads.draft.half())
    found = distillation_loss(
        draft.bfloat16().repeat(3000, 1), target.half().repeat(3000, 1), halves, argmax_weight=0.3
    )
    assert found.gradient.dtype == torch.bfloat16
    exact = distillation_loss(draft, target, heads, argmax_weight=0.3)
    torch.testing.assert_close(found.gradient[:ROWS].float() * 3000, exact.gradient, rtol=0.05, atol=2e-4)


def test_no_rows_are_no_error() -> None:
    """A batch without a position to learn gives nothing, not NaN."""
    _, target, heads = tensors()
    found = distillation_loss(target[:0], target[:0], heads, argmax_weight=0.3)
    assert float(found.loss) == 0.0
    assert found.gradient.shape == (0, WIDTH)
