"""The INT4 kernel for 1..16 rows against the numpy reference, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import reference
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import repack
from edgeprec.kernels.tuning import RowsConfig

pytest.importorskip("triton")
from edgeprec.kernels.int4_rows import int4_rows, int4_rows_swiglu

MakeWeight = Callable[..., Int4Weight]
Measure = Callable[[torch.Tensor, Any], float]

TOLERANCE = {
    torch.float16: 4e-4,
    torch.bfloat16: 5e-3,
}  # of the result; sums are float32, the interpreter truncates bf16
UNROLLED = RowsConfig(wn=1, wk=2, r=1, s=2)
PINNED = RowsConfig(wn=2, wk=2, r=1, s=1, pinned=True)
PIPELINED = RowsConfig(wn=2, wk=1, r=2, s=1, stages=3, prefetch=8)
SHARED = RowsConfig(wn=1, wk=2, r=2, s=2, stages=2, prefetch=8, shared_x=True)


def activations(rows: int, k: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return random [M, K] with a few large values, as real activations have."""
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows * 1000 + k))
    x[:, :: max(2, k // 7)] *= 8.0
    return x.to(device, dtype)


@pytest.mark.parametrize("config", [UNROLLED, PIPELINED, SHARED], ids=["unrolled", "pipelined", "shared"])
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
    config: RowsConfig,
) -> None:
    """Every schedule gives x @ w for every block size, symmetric or not, in both activation types."""
    weight = make_weight(512, 64, group_size=group_size, has_zeros=has_zeros)
    x = activations(3, 512, dtype, device)
    out = torch.full((3, 64), float("nan"), dtype=dtype, device=device)
    result = int4_rows(x, repack(weight, device), config, out=out)
    assert result is out
    expected = reference.int4_linear(x.double().cpu().numpy(), weight)
    assert relative_error(result, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(("k", "n"), [(100, 20), (129, 5), (256, 33), (300, 16), (2, 1)])
@pytest.mark.parametrize("rows", [1, 9, 17])
@pytest.mark.parametrize("config", [PIPELINED, SHARED], ids=["pipelined", "shared"])
def test_shapes_that_divide_no_tile(
    device: str, make_weight: MakeWeight, relative_error: Measure, k: int, n: int, rows: int, config: RowsConfig
) -> None:
    """Tails along K and N, odd ones too, neither read beyond the activations nor write beyond the result."""
    weight = make_weight(k, n, has_zeros=True)
    x = activations(rows, k, torch.float16, device)
    guarded = torch.full((rows * n + 64,), float("nan"), dtype=torch.float16, device=device)
    out = guarded[: rows * n].view(rows, n)
    int4_rows(x, repack(weight, device), config, out=out)
    expected = reference.int4_linear(x.double().cpu().numpy(), weight)
    assert relative_error(out, expected) < TOLERANCE[torch.float16]
    assert guarded[rows * n :].isnan().all()


@pytest.mark.parametrize("config", [UNROLLED, PINNED, PIPELINED, SHARED])
def test_a_row_has_the_same_bits_in_any_company(device: str, make_weight: MakeWeight, config: RowsConfig) -> None:
    """Row i of 40 equals row i alone, of 5 and of 16, bit for bit."""
    weight = repack(make_weight(512, 32), device)
    x = activations(40, 512, torch.float16, device)
    together = int4_rows(x, weight, config)
    assert torch.equal(together[:16], int4_rows(x[:16], weight, config))
    assert torch.equal(together[39:], int4_rows(x[39:], weight, config))
    assert torch.equal(together[:5], int4_rows(x[:5], weight, config))
    assert torch.equal(together[7:8], int4_rows(x[7:8], weight, config))


def test_bias_and_residual_join_before_rounding(device: str, make_weight: MakeWeight, relative_error: Measure) -> None:
    """y = x @ w + bias + residual, rounded once."""
    weight = make_weight(256, 48)
    x = activations(4, 256, torch.float16, device)
    bias, residual = torch.randn(48).to(device, torch.float16), torch.randn(4, 48).to(device, torch.float16)
    result = int4_rows(x, repack(weight, device), PINNED, bias=bias, residual=residual)
    expected = reference.int4_linear(x.double().cpu().numpy(), weight, bias.double().cpu().numpy())
    assert relative_error(result, expected + residual.double().cpu().numpy()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("config", [UNROLLED, PINNED, PIPELINED, SHARED])
def test_fused_swiglu(device: str, make_weight: MakeWeight, relative_error: Measure, config: RowsConfig) -> None:
    """Gate and up of the same unit meet in one program, for an even and an odd number of tiles."""
    for intermediate in (48, 64):
        weight = make_weight(256, 2 * intermediate, group_size=64)
        x = activations(2, 256, torch.float16, device)
        result = int4_rows_swiglu(x, repack(weight, device), config)
        expected = reference.swiglu(reference.int4_linear(x.double().cpu().numpy(), weight))
        assert relative_error(result, expected) < TOLERANCE[torch.float16]


def test_every_schedule_of_one_order_has_the_same_bits(device: str, make_weight: MakeWeight) -> None:
    """WK and S fix the order of a sum: how weights and activations arrive, and R and WN, do not change a bit."""
    weight = repack(make_weight(1024, 64, group_size=128), device)
    x = activations(9, 1024, torch.float16, device)
    expected = int4_rows(x, weight, RowsConfig(wn=1, wk=2, r=1, s=2))
    for config in [
        SHARED,
        RowsConfig(wn=2, wk=2, r=2, s=2, pinned=True),
        RowsConfig(wn=4, wk=2, r=1, s=2, stages=3),
        RowsConfig(wn=1, wk=2, r=4, s=2, stages=3, shared_x=True),
    ]:
        assert torch.equal(int4_rows(x, weight, config), expected), config
        assert torch.equal(int4_rows(x[:3], weight, config), expected[:3]), config


def test_rows_may_lie_apart(device: str, make_weight: MakeWeight) -> None:
    """Activations may be a slice of something wider."""
    weight = repack(make_weight(128, 16), device)
    wide = activations(3, 200, torch.float16, device)
    expected = int4_rows(wide[:, :128].contiguous(), weight, UNROLLED)
    assert torch.equal(int4_rows(wide[:, :128], weight, UNROLLED), expected)


def test_extreme_scales_and_activations(device: str, make_weight: MakeWeight, relative_error: Measure) -> None:
    """Subnormal nibbles lose nothing: large activations do not overflow before the scale, small ones do not vanish."""
    weight = make_weight(128, 16, group_size=128)
    for size in (30000.0, 1e-4):
        x = (activations(1, 128, torch.float32, device).clamp(-2, 2) * size / 2).half()
        result = int4_rows(x, repack(weight, device), UNROLLED)
        expected = reference.int4_linear(x.double().cpu().numpy(), weight)
        assert np.abs(expected).max() < 65504.0
        assert relative_error(result, expected) < 2e-3  # an infinite one has no error below


def test_refusals(device: str, make_weight: MakeWeight) -> None:
    """Wrong widths, types, layouts and too many rows are one sentence, before anything is launched."""
    weight = repack(make_weight(128, 32), device)
    x = activations(2, 128, torch.float16, device)
    with pytest.raises(KernelError, match=r"expected \[M, 128\]"):
        int4_rows(x[:, :100], weight, UNROLLED)
    with pytest.raises(KernelError, match="expected at most 64"):
        int4_rows(x.repeat(33, 1), weight, UNROLLED)
    with pytest.raises(KernelError, match="expected float16 or bfloat16"):
        int4_rows(x.float(), weight, UNROLLED)
    with pytest.raises(KernelError, match="expected contiguous rows"):
        int4_rows(x.repeat(64, 1).t()[:2], weight, UNROLLED)
    with pytest.raises(KernelError, match=r"the output is torch.float16 \(2, 31\)"):
        int4_rows(x, weight, UNROLLED, out=torch.empty(2, 31, dtype=torch.float16, device=device))
    with pytest.raises(KernelError, match="a multiple of 16"):
        int4_rows_swiglu(x, repack(make_weight(128, 40), device), UNROLLED)
