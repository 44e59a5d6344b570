"""The kernels that follow a linear layer, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import torch_fallback

pytest.importorskip("triton")
from edgeprec.kernels.epilogue import sum_parts, sum_parts_swiglu, swiglu


def randn(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    """Return a seeded normal float32 tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("split", [1, 2, 7])
def test_parts_are_summed_first_to_last(device: str, split: int) -> None:
    """The order is fixed, so the bits are those of adding the parts one by one."""
    parts, out = randn(split, 3, 500, device=device), torch.full((3, 500), float("nan"), device=device)
    sum_parts(parts, out, bias=None, residual=None)
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    assert torch.equal(out, expected)


def test_swiglu_of_parts_and_of_half_precision(device: str) -> None:
    """Parts are summed before the activation; a plain fp16 tensor is one part."""
    parts = randn(3, 2, 600, device=device)
    out = torch.empty(2, 300, device=device)
    sum_parts_swiglu(parts, out)
    torch.testing.assert_close(out, torch_fallback.swiglu(parts.sum(0)), rtol=1e-5, atol=1e-6)
    gate_up = randn(5, 34, device=device, seed=1).half()
    torch.testing.assert_close(swiglu(gate_up).float(), torch_fallback.swiglu(gate_up), rtol=1e-3, atol=1e-6)


def test_swiglu_refuses_an_odd_width(device: str) -> None:
    """Gate and up are halves."""
    with pytest.raises(KernelError, match=r"expected contiguous \[M, 2 I\]"):
        swiglu(torch.zeros(2, 7, device=device))
