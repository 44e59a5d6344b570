"""What only a GPU can show: inline PTX against the portable path's results, graphs, repeatability, true shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgeprec.kernels import dispatch, torch_fallback
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import DeviceInt4Weight, repack
from edgeprec.kernels.tuning import RowsConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MakeWeight = Callable[..., Int4Weight]
Measure = Callable[[torch.Tensor, Any], float]
SHAPES = [(4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (2048, 2048), (2048, 8192), (576, 576)]
ROWS = [1, 2, 7, 16, 17, 64]


def random_int4(n: int, k: int, *, group_size: int = 128) -> DeviceInt4Weight:
    """Return a random symmetric weight, made on the GPU."""
    generator = torch.Generator("cuda").manual_seed(n + k)
    tiles = (-(-n // 16), -(-k // 128))
    words = torch.randint(-(2**15), 2**15, (*tiles, 16, 32), device="cuda", dtype=torch.int16, generator=generator)
    scales = torch.rand(*tiles, 8, 2, 128 // group_size, device="cuda", generator=generator).add_(0.5).mul_(0.01).half()
    return DeviceInt4Weight(words=words, scales=scales, zeros=None, n=n, k=k, group_size=group_size)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return a seeded normal fp16 tensor on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).half()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int4_of_true_size(relative_error: Measure, n: int, k: int, rows: int) -> None:
    """The table's kernel for every projection of Llama 8B and a small model, into a poisoned output."""
    weight, x = random_int4(n, k), randn(rows, k)
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.float16)
    dispatch.int4_linear(x, weight, out=out)
    expected = x.double() @ torch_fallback.dequantize(weight).double().T
    assert relative_error(out, expected) < 4e-4
    assert torch.equal(out, dispatch.int4_linear(x, weight))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_fp16_of_true_size(relative_error: Measure, n: int, k: int, rows: int) -> None:
    """The same in FP16, against float64."""
    weight, x = randn(n, k, seed=1) * 0.02, randn(rows, k)
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.float16)
    dispatch.fp16_linear(x, weight, out=out)
    assert relative_error(out, x.double() @ weight.double().T) < 4e-4
    assert torch.equal(out, dispatch.fp16_linear(x, weight))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_fp16_rows_keep_their_bits(n: int, k: int) -> None:
    """Every row of 1..16, and of batches and prompts of up to 200, has the bits it has alone."""
    weight, x = randn(n, k, seed=1) * 0.02, randn(200, k)
    alone = torch.cat([dispatch.fp16_linear(x[row : row + 1], weight) for row in range(200)])
    for rows in [*range(1, 17), 32, 33, 64, 65, 128, 200]:
        assert torch.equal(dispatch.fp16_linear(x[:rows], weight), alone[:rows]), f"{rows} rows"


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("group_size", [32, 128])
def test_int4_rows_keep_their_bits(n: int, k: int, group_size: int) -> None:
    """With the table's sizes every row of 1..16 has the bits it has alone; of a gate and up, the fused SwiGLU's too."""
    weight, x = random_int4(n, k, group_size=group_size), randn(16, k)
    alone = torch.cat([dispatch.int4_linear(x[row : row + 1], weight) for row in range(16)])
    for rows in range(1, 17):
        assert torch.equal(dispatch.int4_linear(x[:rows], weight), alone[:rows]), f"{rows} rows"
    if n == 28672:
        together = dispatch.int4_swiglu(x, weight)
        for rows in (1, 5, 9):
            assert torch.equal(dispatch.int4_swiglu(x[:rows], weight), together[:rows]), f"{rows} rows, SwiGLU"


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096)])
def test_schedules_of_one_order_agree(relative_error: Measure, n: int, k: int) -> None:
    """Pipelined or not, blocks of rows, tiles of any height: not one bit differs while activations come one way."""
    from edgeprec.kernels.int4_rows import int4_rows

    weight, x = random_int4(n, k), randn(64, k)
    reference = x[:16].double() @ torch_fallback.dequantize(weight).double().T
    for configs in [
        [
            RowsConfig(wn=1, wk=8, r=1, s=1),
            RowsConfig(wn=1, wk=8, r=2, s=1, pinned=True),
            RowsConfig(wn=1, wk=8, r=1, s=1, stages=3),
        ],
        [
            RowsConfig(wn=1, wk=8, r=2, s=1, stages=4, shared_x=True),
            RowsConfig(wn=1, wk=8, r=2, s=1, stages=3, shared_x=True, prefetch=64),
            RowsConfig(wn=2, wk=8, r=1, s=1, stages=3, shared_x=True),
        ],
    ]:
        expected = int4_rows(x[:16], weight, configs[0])
        assert relative_error(expected, reference) < 4e-4
        for config, rows in itertools.product(configs, (3, 16, 17, 64)):
            out = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.float16)
            int4_rows(x[:rows], weight, config, out=out)
            assert torch.equal(out[:16], expected[:rows]), f"{config}, {rows} rows"
            assert not out.isnan().any()


@pytest.mark.parametrize(("n", "k"), [(28672, 4096), (16384, 2048)])
def test_fp16_swiglu_keeps_its_bits(n: int, k: int) -> None:
    """The fused pair too, for 1 and 16 rows."""
    weight, x = randn(n, k, seed=1) * 0.02, randn(16, k)
    together = dispatch.fp16_swiglu(x, weight)
    assert torch.equal(together[5:6], dispatch.fp16_swiglu(x[5:6], weight))


@pytest.mark.parametrize("rows", [1, 16])
def test_fused_epilogues(relative_error: Measure, rows: int) -> None:
    """SwiGLU and residual of an 8B layer, fused, against float64."""
    gate_up, down, x = random_int4(28672, 4096), random_int4(4096, 14336), randn(rows, 4096)
    both = x.double() @ torch_fallback.dequantize(gate_up).double().T
    expected = torch.nn.functional.silu(both[:, :14336]) * both[:, 14336:]
    hidden = dispatch.int4_swiglu(x, gate_up)
    assert relative_error(hidden, expected) < 5e-4
    result = dispatch.int4_linear(hidden, down, residual=x)
    assert relative_error(result, hidden.double() @ torch_fallback.dequantize(down).double().T + x.double()) < 4e-4


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
def test_a_graph_replays_the_same_bits(rows: int) -> None:
    """A captured chain of kernels, which overlap through dependent launch, equals the eager one, again and again."""
    gate_up, down, dense = random_int4(28672, 4096), random_int4(4096, 14336), randn(4096, 4096, seed=2) * 0.02
    x = randn(rows, 4096)

    def layer() -> torch.Tensor:
        hidden = dispatch.fp16_linear(x, dense, residual=x)
        return dispatch.int4_linear(dispatch.int4_swiglu(hidden, gate_up), down, residual=hidden)

    expected = layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layer()
        for _ in range(10):
            result = layer()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


def test_asymmetric_bf16_of_true_size(make_weight: MakeWeight, relative_error: Measure) -> None:
    """Zero points, blocks of 32 and bf16 at once, through both kernels."""
    weight = repack(make_weight(2048, 1000, group_size=32, has_zeros=True), "cuda")
    for rows in (3, 24):
        x = randn(rows, 2048).bfloat16()
        expected = x.double() @ torch_fallback.dequantize(weight).double().T
        assert relative_error(dispatch.int4_linear(x, weight), expected) < 3e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_head_statistics_of_true_size(dtype: torch.dtype) -> None:
    """128,256 logits a row, against plain torch."""
    logits = (randn(5, 128256) * 4).to(dtype)
    result, expected = dispatch.head_statistics(logits), torch_fallback.head_statistics(logits)
    assert torch.equal(result.argmax, expected.argmax)
    torch.testing.assert_close(result.margin, expected.margin, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.entropy_bits, expected.entropy_bits, rtol=1e-4, atol=1e-4)
