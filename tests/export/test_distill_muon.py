"""Muon: updates of full rank, of a known size, that reach the minimum and survive a save."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from edgeprec.export.distill_muon import Muon, orthogonalize
from edgeprec.export.distill_optimizer import DraftOptimizer


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_singular_values_become_one(shape: tuple[int, int]) -> None:
    """Directions stay, sizes do not: from a spread of a hundred to less than two."""
    left, _, right = torch.linalg.svd(drawn(*shape), full_matrices=False)
    sizes = torch.logspace(0, -2, 8)
    found = orthogonalize(left * sizes @ right)
    assert found.shape == shape
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    projected = left.T @ found @ right.T  # diagonal in the same singular vectors
    torch.testing.assert_close(projected, torch.diag(projected.diagonal()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(32, 64), (64, 32)])
def test_a_step_has_the_size_of_adamws(shape: tuple[int, int]) -> None:
    """Root mean square 0.2 times the learning rate, whatever the gradient's size or the matrix's shape."""
    for factor in (1e-6, 1e3):
        matrix = nn.Parameter(torch.zeros(shape))
        matrix.grad = factor * drawn(*shape)
        Muon([matrix]).step(0.01)
        assert float(matrix.detach().square().mean().sqrt()) == pytest.approx(0.2 * 0.01, rel=0.2)


def test_a_minimum_is_reached() -> None:
    """A linear map is learned, matrix and vector together."""
    module, wanted = nn.Linear(16, 8), drawn(8, 16, seed=1)
    with torch.no_grad():
        module.weight.copy_(drawn(8, 16, seed=2))
    optimizer = DraftOptimizer(module, learning_rate=0.2)
    inputs = drawn(256, 16, seed=3)
    losses = []
    for step in range(200):
        loss = (module(inputs) - inputs @ wanted.T - 1.0).square().mean()
        loss.backward()
        optimizer.step(1.0 - step / 200)
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-2 * losses[0]
    assert module.weight.grad is None


def test_a_saved_optimizer_goes_on_alike() -> None:
    """Momentum and moments come back; without them the next step would be another."""
    modules = [nn.Linear(6, 4) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    first = DraftOptimizer(modules[0], learning_rate=0.1)
    inputs = drawn(8, 6)

    def learn(module: nn.Module, optimizer: DraftOptimizer) -> None:
        module(inputs).square().sum().backward()
        optimizer.step(1.0)

    learn(modules[0], first)
    modules[1].load_state_dict(modules[0].state_dict())
    second = DraftOptimizer(modules[1], learning_rate=0.1)
    second.restore(copy.deepcopy(first.state()))  # as from a file
    learn(modules[0], first)
    learn(modules[1], second)
    for name, value in modules[0].state_dict().items():
        torch.testing.assert_close(modules[1].state_dict()[name], value, rtol=0, atol=0)


def test_gradients_are_clipped_together() -> None:
    """The norm before is told."""
    module = nn.Linear(4, 4)
    module(torch.full((1, 4), 100.0)).sum().backward()
    optimizer = DraftOptimizer(module, learning_rate=0.1)
    assert optimizer.clip(1.0) > 100.0
    assert optimizer.clip(1.0) == pytest.approx(1.0, rel=1e-3)
