"""The FP16 kernel whose rows do not depend on each other, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from edgeprec.errors import KernelError
from edgeprec.kernels import reference
from edgeprec.kernels.tuning import Fp16Config

pytest.importorskip("triton")
from edgeprec.kernels.epilogue import sum_parts_swiglu
from edgeprec.kernels.fp16_rows import fp16_rows, fp16_rows_swiglu

Measure = Callable[[torch.Tensor, Any], float]

TOLERANCE = 4e-4
WHOLE = Fp16Config(bn=64, bm=64, bk=64, split=1, stages=3, warps=4)
SPLIT = Fp16Config(bn=64, bm=64, bk=32, split=4, stages=3, warps=4)


def randn(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    """Return a seeded normal fp16 tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, torch.float16)


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 256, 64), (16, 256, 96), (5, 100, 20), (33, 130, 65), (70, 64, 1)])
def test_is_a_matrix_product(
    device: str, relative_error: Measure, rows: int, k: int, n: int, config: Fp16Config
) -> None:
    """x @ w^T over tails along M, K and N, with nothing written beyond."""
    x, weight = randn(rows, k, device=device), randn(n, k, device=device, seed=1)
    guarded = torch.full((rows * n + 64,), float("nan"), dtype=torch.float16, device=device)
    out = guarded[: rows * n].view(rows, n)
    assert fp16_rows(x, weight, config, out=out) is out
    assert relative_error(out, x.double().cpu() @ weight.double().cpu().T) < TOLERANCE
    assert guarded[rows * n :].isnan().all()


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_a_row_has_the_same_bits_in_any_company(device: str, config: Fp16Config) -> None:
    """Row i alone, among 16, among 40 and among 80: the same bits. This is what `exact` rests on."""
    x, weight = randn(80, 256, device=device), randn(64, 256, device=device, seed=1)
    together = fp16_rows(x, weight, config)
    for first, last in [(0, 1), (0, 16), (7, 8), (3, 43), (79, 80)]:
        assert torch.equal(together[first:last], fp16_rows(x[first:last], weight, config))


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_wide_tiles_have_the_bits_of_narrow_ones(device: str, config: Fp16Config) -> None:
    """Tiles for many rows are of one order of sums with those for few: 1, 16 or 130 rows, the same bits."""
    x, weight = randn(130, 256, device=device), randn(192, 256, device=device, seed=1)
    wide = replace(config, bn=128, bm=128, stages=2, warps=8)
    together = fp16_rows(x, weight, wide)
    for first, last in [(0, 1), (0, 16), (100, 130)]:
        assert torch.equal(together[first:last], fp16_rows(x[first:last], weight, config))
    inner = fp16_rows_swiglu(x, weight[:128], wide)
    assert torch.equal(inner[100:], fp16_rows_swiglu(x[100:], weight[:128], config))


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_bias_and_residual(device: str, relative_error: Measure, config: Fp16Config) -> None:
    """Both are added once before rounding."""
    x, weight = randn(4, 128, device=device), randn(48, 128, device=device, seed=1)
    bias, residual = randn(48, device=device, seed=2), randn(4, 48, device=device, seed=3)
    result = fp16_rows(x, weight, config, bias=bias, residual=residual)
    expected = x.double() @ weight.double().T + bias.double() + residual.double()
    assert relative_error(result, expected) < TOLERANCE


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_swiglu(device: str, relative_error: Measure, config: Fp16Config) -> None:
    """silu(gate) * up with gate and up kept in float32."""
    x, weight = randn(3, 128, device=device), randn(72, 128, device=device, seed=1)
    result = fp16_rows_swiglu(x, weight, config)
    gate_up = (x.double() @ weight.double().T).cpu().numpy()
    assert relative_error(result, reference.swiglu(gate_up)) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_swiglu_in_one_kernel_has_the_bits_of_two(device: str, rows: int) -> None:
    """Where the tiles fit, gate and up meet in registers: what comes out is what two kernels give."""
    x, weight = randn(rows, 256, device=device), randn(2 * 96, 256, device=device, seed=1)
    gate_up = fp16_rows(x, weight, WHOLE, out=torch.empty(rows, 192, device=device))
    separate = torch.empty(rows, 96, dtype=torch.float16, device=device)
    sum_parts_swiglu(gate_up.unsqueeze(0), separate)
    assert torch.equal(fp16_rows_swiglu(x, weight, WHOLE), separate)


def test_refusals(device: str) -> None:
    """A weight of another type or layout, and activations of another width, are one sentence."""
    x, weight = randn(2, 64, device=device), randn(16, 64, device=device)
    with pytest.raises(KernelError, match=r"expected contiguous torch.float16 \[N, K\]"):
        fp16_rows(x, weight.float(), WHOLE)
    with pytest.raises(KernelError, match=r"expected contiguous torch.float16 \[N, K\]"):
        fp16_rows(x, randn(64, 16, device=device).t(), WHOLE)
    with pytest.raises(KernelError, match=r"expected \[M, 64\]"):
        fp16_rows(x[:, :60], weight, WHOLE)
