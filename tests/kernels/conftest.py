"""Random INT4 weights, and the device that kernels are tested on: a GPU, or Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.kernels.layout import Int4Weight, num_groups, pack_nibbles

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_GPU = torch.cuda.is_available()

if HAS_TRITON and not HAS_GPU:  # has to be set before any kernel is decorated
    os.environ["TRITON_INTERPRET"] = "1"


def _let_interpreter_index() -> None:
    """Let loop bounds be kernel arguments: the interpreter has them as [1] arrays, numpy wants scalars."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    interpreter._patch_lang_tensor = patched


if HAS_TRITON and not HAS_GPU:
    _let_interpreter_index()


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Return where to put tensors: the interpreter's turn on a machine without a GPU, the GPU's on one with."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if (request.param == "cuda") != HAS_GPU:
        pytest.skip("the interpreter and a GPU exclude each other")
    return "cuda" if request.param == "cuda" else "cpu"


@pytest.fixture(scope="session")
def make_weight() -> Callable[..., Int4Weight]:
    """Return a maker of random weights: ``make_weight(k, n, group_size=, has_zeros=, seed=)``."""

    def make(k: int, n: int, *, group_size: int = 32, has_zeros: bool = False, seed: int = 0) -> Int4Weight:
        rng = np.random.default_rng(seed)
        groups = num_groups(k, group_size)
        levels = rng.integers(0, 16, (k, n)) if has_zeros else rng.integers(-8, 8, (k, n))
        zeros = pack_nibbles(rng.integers(0, 16, (groups, n)).astype(np.uint8)) if has_zeros else None
        scales = (rng.uniform(0.5, 1.5, (groups, n)) * rng.choice([-0.02, 0.02], (groups, n))).astype(np.float16)
        return Int4Weight(
            packed=pack_nibbles(levels.astype(np.int8)), scales=scales, zeros=zeros, group_size=group_size
        )

    return make


@pytest.fixture(scope="session")
def relative_error() -> Callable[[torch.Tensor, Any], float]:
    """Return the measure of the kernel tests: norm of the difference over norm of the reference, in float64."""

    def measure(result: torch.Tensor, reference: Any) -> float:
        values = result.double().cpu()
        expected = torch.as_tensor(reference).double().cpu()
        difference = (values - expected).abs()
        print(f"max difference {difference.max():.3e}, mean {difference.mean():.3e}")  # noqa: T201, shown on failure
        return float((values - expected).norm() / expected.norm())

    return measure
