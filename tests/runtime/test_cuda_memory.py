"""Device memory over a stand-in for cuda-bindings: what is called, in which order, and how errors read."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeprec.cuda_library import gpu_sm, import_cuda
from edgeprec.errors import DeviceError, MissingDependency
from edgeprec.runtime import cuda_memory
from edgeprec.runtime.cuda_memory import CudaMemory


class FakeCuda:
    """Answers like ``cuda.bindings.runtime``: an error code first. ``fails`` names the call that returns 2."""

    cudaDeviceAttr = SimpleNamespace(
        cudaDevAttrComputeCapabilityMajor="major", cudaDevAttrComputeCapabilityMinor="minor"
    )
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="in", cudaMemcpyDeviceToHost="out")
    answers: dict[str, tuple[Any, ...]] = {  # noqa: RUF012
        "cudaGetDevice": (0,), "cudaStreamCreate": (9,), "cudaMalloc": (4096,), "cudaMemGetInfo": (1000, 5000),
        "cudaGetErrorString": (b"out of memory",),
    }  # fmt: skip

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == self.fails:
                return (2,)
            if name == "cudaDeviceGetAttribute":
                return (0, {"major": 12, "minor": 0}[arguments[0]])
            return (0, *self.answers.get(name, ()))

        return call


def make(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> tuple[CudaMemory, FakeCuda]:
    """Return memory over a stand-in."""
    cuda = FakeCuda(fails)
    monkeypatch.setattr(cuda_memory, "import_cuda", lambda: cuda)
    return CudaMemory(), cuda


def test_the_generation_is_read_from_the_device() -> None:
    """Major and minor number make the name that engines are listed under."""
    assert gpu_sm(FakeCuda()) == "sm120"


def test_without_a_gpu_it_says_what_to_do() -> None:
    """CUDA's own words, and the way out."""
    with pytest.raises(
        DeviceError,
        match=r"no usable NVIDIA GPU, cudaGetDevice failed: .*: install its driver, .* --engine onnxruntime",
    ):
        gpu_sm(FakeCuda("cudaGetDevice"))


def test_memory_is_zeroed_and_freed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of the cache that were never written hold zeros, not what lay there before."""
    memory, cuda = make(monkeypatch)
    assert (memory.allocate(64), memory.sm, memory.name, memory.stream) == (4096, "sm120", "cuda:0", 9)
    assert ("cudaMemset", 4096, 0, 64) in cuda.calls
    memory.close()
    memory.close()
    names = [call[0] for call in cuda.calls]
    assert (names.count("cudaFree"), names.count("cudaStreamDestroy")) == (1, 1)


def test_copies_go_over_the_stream_and_downloads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download returns when the values are there; an upload only queues."""
    memory, cuda = make(monkeypatch)
    values = np.zeros(5, np.int64)
    memory.upload(64, values)
    assert cuda.calls[-1] == ("cudaMemcpyAsync", 64, values.ctypes.data, 40, "in", 9)
    memory.download(values, 64)
    assert cuda.calls[-2:] == [("cudaMemcpyAsync", values.ctypes.data, 64, 40, "out", 9), ("cudaStreamSynchronize", 9)]
    assert memory.free_bytes() == 1000


@pytest.mark.parametrize("call", ["cudaGetDevice", "cudaStreamCreate", "cudaMalloc", "cudaMemGetInfo"])
def test_errors_carry_cudas_words(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The call, its words and its number stand in one sentence."""

    def use() -> None:
        memory, _ = make(monkeypatch, call)
        memory.allocate(1)
        memory.free_bytes()

    with pytest.raises(DeviceError, match=rf"{call} failed: out of memory \(CUDA error 2\)"):
        use()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message holds the command that installs it."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependency, match=r"'cuda-bindings', .*pip install 'edgeprec\[tensorrt\]'"):
        import_cuda()


def test_every_function_used_exists_in_the_package() -> None:
    """Names are checked against the real package, which imports without a GPU."""
    runtime: ModuleType = pytest.importorskip("cuda.bindings.runtime", reason="the extra tensorrt is not installed")
    names = (
        "cudaGetDevice", "cudaDeviceGetAttribute", "cudaStreamCreate", "cudaStreamDestroy", "cudaStreamSynchronize",
        "cudaMalloc", "cudaFree", "cudaMemset", "cudaMemcpyAsync", "cudaMemGetInfo", "cudaGetErrorString",
    )  # fmt: skip
    assert all(callable(getattr(runtime, name)) for name in names)
    assert runtime.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor
    assert runtime.cudaMemcpyKind.cudaMemcpyHostToDevice is not None
