"""The reading kernels of the ablation, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from operator import xor
from pathlib import Path
from types import ModuleType

import pytest
import torch

from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import repack
from edgeprec.kernels.tuning import RowsConfig

pytest.importorskip("triton")

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
CONFIG = RowsConfig(wn=1, wk=2, r=2, s=1)


@pytest.fixture
def ablation(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("kernel_timing", "kernel_ablation")
    yield [import_module(name) for name in names][-1]
    for name in names:
        sys.modules.pop(name, None)


def folded(values: torch.Tensor) -> int:
    """Return the exclusive or of int32 [steps, ...], first added up along the steps as int32."""
    added = values.sum(0, dtype=torch.int64).add(2**31).remainder(2**32).sub(2**31)
    return reduce(xor, added.flatten().tolist(), 0)


@pytest.mark.parametrize("dequantize", [False, True])
def test_every_word_and_activation_is_read_once(
    ablation: ModuleType, device: str, make_weight: Callable[..., Int4Weight], dequantize: bool
) -> None:
    """Each program's number is that of its weights and of all activations: nothing is left out or read twice."""
    weight = repack(make_weight(512, 64, group_size=128), device)
    x = torch.randn(16, 512, generator=torch.Generator().manual_seed(0)).half().to(device)
    result = ablation.read_tiles(x, weight, CONFIG, dequantize=dequantize).cpu()
    words = weight.words.cpu().view(torch.int32).reshape(2, 2, 2, 2, 256)  # [program, r, step, w, 256]
    if dequantize:
        upper = words >> 8
        words = (words & 0x000F000F) + ((words & 0x00F000F0) ^ (upper & 0x000F000F)) + (upper & 0x00F000F0)
    activations = x.cpu().view(torch.int32).reshape(16, 2, 2, 64)  # [row, step, w, 64]
    for program in range(2):
        expected = folded(words[program].transpose(0, 1)) ^ folded(activations.transpose(0, 1))
        assert int(result[program]) == expected


def test_a_first_step_is_the_product_of_its_inputs(
    ablation: ModuleType, device: str, make_weight: Callable[..., Int4Weight]
) -> None:
    """Cut to one step, the weight is that of the first inputs."""
    from edgeprec.kernels.int4_rows import int4_rows

    weight = repack(make_weight(512, 32, group_size=128), device)
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(1)).half().to(device)
    x[:, 256:] = 0.0
    short = ablation.first_step(weight, CONFIG)
    torch.testing.assert_close(int4_rows(x[:, :256].contiguous(), short, CONFIG), int4_rows(x, weight, CONFIG))
