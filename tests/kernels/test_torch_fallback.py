"""The plain torch kernels against the numpy reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import dispatch, reference, torch_fallback
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import repack

MakeWeight = Callable[..., Int4Weight]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return a seeded normal tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_int4_linear(make_weight: MakeWeight, group_size: int, has_zeros: bool) -> None:
    """x @ w + bias + residual to float32 rounding, odd shapes included."""
    weight = make_weight(161, 37, group_size=group_size, has_zeros=has_zeros)
    x, bias, residual = randn(5, 161), randn(37, seed=1), randn(5, 37, seed=2)
    result = torch_fallback.int4_linear(x, repack(weight), bias=bias, residual=residual)
    expected = reference.int4_linear(x.numpy(), weight, bias.numpy()) + residual.numpy()
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_have_the_type_of_the_activations(dtype: torch.dtype) -> None:
    """Sums run in float32 and are rounded once."""
    x, weight = randn(2, 64).to(dtype), randn(8, 64, seed=1).to(dtype)
    result = dispatch.fp16_linear(x, weight)
    assert result.dtype is dtype
    torch.testing.assert_close(result, (x.float() @ weight.float().T).to(dtype))
    exact = torch.empty(2, 8)
    assert torch.equal(dispatch.fp16_linear(x, weight, out=exact).to(dtype), result)


def test_rows_keep_their_bits() -> None:
    """A row alone, among five and among forty gives the same numbers."""
    x, weight, bias = randn(40, 100), randn(33, 100, seed=1), randn(33, seed=2)
    whole = torch_fallback.fp16_linear(x, weight, bias=bias)
    for rows in (1, 5, 16, 17, 33):
        assert torch.equal(torch_fallback.fp16_linear(x[3 : 3 + rows], weight, bias=bias), whole[3 : 3 + rows])


def test_swiglu() -> None:
    """silu(gate) * up of the two halves."""
    gate_up = randn(3, 10)
    np.testing.assert_allclose(torch_fallback.swiglu(gate_up).numpy(), reference.swiglu(gate_up.numpy()), rtol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_head_statistics(scale: float) -> None:
    """Argmax, margin and entropy in bits, flat and peaked, with tokens ruled out."""
    logits = randn(6, 333) * scale
    logits[:, 5:200] = -torch.inf
    expected = reference.head_statistics(logits.numpy())
    result = torch_fallback.head_statistics(logits)
    np.testing.assert_array_equal(result.argmax.numpy(), expected.argmax)
    np.testing.assert_allclose(result.margin.numpy(), expected.margin, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.entropy_bits.numpy(), expected.entropy_bits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_head_statistics_of_a_broken_row(bad: float) -> None:
    """A row with any NaN or +inf has no entropy, and the one beside it keeps its own."""
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    expected = torch_fallback.head_statistics(logits[1:])
    logits[0, 17] = bad
    result = torch_fallback.head_statistics(logits)
    assert result.entropy_bits.isnan().tolist() == [True, False]
    assert torch.equal(result.entropy_bits[1:], expected.entropy_bits)


def test_head_statistics_need_two_logits() -> None:
    """One logit has no margin."""
    with pytest.raises(KernelError, match="V of 2 or more"):
        torch_fallback.head_statistics(torch.zeros(1, 1))
