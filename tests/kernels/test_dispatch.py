"""The door to the kernels: what computes where, and that plain torch gives the reference."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import torch

from edgeprec.kernels import dispatch, reference
from edgeprec.kernels.layout import Int4Weight
from edgeprec.kernels.repack import repack

MakeWeight = Callable[..., Int4Weight]
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def fresh_backend() -> Iterator[None]:
    """Forget what was found out about devices, before and after."""
    dispatch.kernel_backend.cache_clear()
    yield
    dispatch.kernel_backend.cache_clear()


def test_a_cpu_computes_in_torch_without_warning(caplog: pytest.LogCaptureFixture, fresh_backend: None) -> None:
    """No GPU is no fault."""
    with caplog.at_level(logging.WARNING):
        assert dispatch.kernel_backend(CPU).name == "torch"
    assert not caplog.records


@pytest.mark.parametrize(
    ("spec", "version", "capability", "said"),
    [
        (None, "3.6.0", (9, 0), "Triton is not installed"),
        (ModuleSpec("triton", None), "3.1.0", (9, 0), "Triton is 3.1.0, 3.4 or later"),
        (ModuleSpec("triton", None), "3.6.0", (7, 5), "SM 75, SM 80 or later"),
        (ModuleSpec("triton", None), "3.6.0", (8, 7), ""),
    ],
)
def test_a_gpu_without_triton_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fresh_backend: None,
    spec: ModuleSpec | None,
    version: str,
    capability: tuple[int, int],
    said: str,
) -> None:
    """Triton absent, too old or the GPU too old: plain torch, said once and in the backend's reason."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with caplog.at_level(logging.WARNING):
        backends = [dispatch.kernel_backend(GPU) for _ in range(3)]
    assert said in backends[0].reason
    assert backends[0].name == ("torch" if said else "triton")
    assert len(caplog.records) == bool(said)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_linears_on_a_cpu(make_weight: MakeWeight, dtype: torch.dtype) -> None:
    """INT4 and FP16, with bias, residual and output given, agree with the reference."""
    weight = make_weight(96, 20, has_zeros=True)
    generator = torch.Generator().manual_seed(0)
    x, residual = torch.randn(3, 96, generator=generator).to(dtype), torch.randn(3, 20, generator=generator).to(dtype)
    bias, out = torch.randn(20, generator=generator).to(dtype), torch.empty(3, 20, dtype=dtype)
    expected = reference.int4_linear(x.numpy(), weight, bias.numpy()) + residual.numpy()
    assert dispatch.int4_linear(x, repack(weight), bias=bias, residual=residual, out=out) is out
    np.testing.assert_allclose(out.numpy(), expected, rtol=2e-3, atol=2e-2)
    dense = torch.from_numpy(reference.dequantize(weight).T.copy()).to(dtype)
    result = dispatch.fp16_linear(x, dense, bias=bias, residual=residual)
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-3, atol=2e-2)


def test_swiglu_and_head_on_a_cpu(make_weight: MakeWeight) -> None:
    """The other two doors lead to plain torch too."""
    weight = make_weight(64, 24)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    expected = reference.swiglu(reference.int4_linear(x.numpy(), weight))
    np.testing.assert_allclose(dispatch.int4_swiglu(x, repack(weight)).numpy(), expected, rtol=1e-4, atol=1e-5)
    dense = torch.from_numpy(reference.dequantize(weight).T.copy())
    np.testing.assert_allclose(dispatch.fp16_swiglu(x, dense).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert dispatch.head_statistics(x).argmax.tolist() == x.argmax(1).tolist()


def test_importing_the_door_brings_no_triton() -> None:
    """Triton is imported on the first GPU call, not before."""
    code = "import sys, edgeprec.kernels.dispatch; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
