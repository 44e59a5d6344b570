"""The INT4 kernel for more than 16 rows against the numpy reference, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgeprec.kernels import reference
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import repack
from edgeprec.kernels.tuning import WideConfig

pytest.importorskip("triton")
from edgeprec.kernels.int4_wide import int4_wide, int4_wide_swiglu

MakeWeight = Callable[..., Int4Weight]
Measure = Callable[[torch.Tensor, Any], float]

TOLERANCE = {torch.float16: 4e-4, torch.bfloat16: 5e-3}
WHOLE = WideConfig(bn=64, split=1, stages=3, warps=4)
SPLIT = WideConfig(bn=64, split=4, stages=3, warps=4)


def activations(rows: int, k: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a seeded normal [M, K]."""
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(device, dtype)


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_every_block_size_and_type(
    device: str,
    make_weight: MakeWeight,
    relative_error: Measure,
    group_size: int,
    has_zeros: bool,
    dtype: torch.dtype,
    config: WideConfig,
) -> None:
    """x @ w for every block size, symmetric or not, in both types, whole and split along K."""
    weight = make_weight(512, 64, group_size=group_size, has_zeros=has_zeros)
    x = activations(20, 512, dtype, device)
    out = torch.full((20, 64), float("nan"), dtype=dtype, device=device)
    assert int4_wide(x, repack(weight, device), config, out=out) is out
    expected = reference.int4_linear(x.double().cpu().numpy(), weight)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(("k", "n", "rows"), [(100, 20, 17), (300, 65, 33), (129, 1, 70), (512, 80, 3)])
@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_shapes_that_divide_no_tile(
    device: str, make_weight: MakeWeight, relative_error: Measure, k: int, n: int, rows: int, config: WideConfig
) -> None:
    """Tails along K, N and M are neither read nor written beyond."""
    weight = make_weight(k, n, has_zeros=True)
    x = activations(rows, k, torch.float16, device)
    guarded = torch.full((rows * n + 64,), float("nan"), dtype=torch.float16, device=device)
    out = guarded[: rows * n].view(rows, n)
    int4_wide(x, repack(weight, device), config, out=out)
    expected = reference.int4_linear(x.double().cpu().numpy(), weight)
    assert relative_error(out, expected) < TOLERANCE[torch.float16]
    assert guarded[rows * n :].isnan().all()


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_bias_and_residual(device: str, make_weight: MakeWeight, relative_error: Measure, config: WideConfig) -> None:
    """Both are added once, whole or split."""
    weight = make_weight(512, 48)
    x = activations(18, 512, torch.float16, device)
    bias, residual = torch.randn(48).to(device, torch.float16), torch.randn(18, 48).to(device, torch.float16)
    result = int4_wide(x, repack(weight, device), config, bias=bias, residual=residual)
    expected = reference.int4_linear(x.double().cpu().numpy(), weight, bias.double().cpu().numpy())
    assert relative_error(result, expected + residual.double().cpu().numpy()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_swiglu(device: str, make_weight: MakeWeight, relative_error: Measure, config: WideConfig) -> None:
    """silu(gate) * up with gate and up kept in float32."""
    weight = make_weight(512, 72)
    x = activations(17, 512, torch.float16, device)
    result = int4_wide_swiglu(x, repack(weight, device), config)
    expected = reference.swiglu(reference.int4_linear(x.double().cpu().numpy(), weight))
    assert relative_error(result, expected) < TOLERANCE[torch.float16]
