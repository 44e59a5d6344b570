"""Device memory and one stream, through cuda-bindings: what the TensorRT engine stands on."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from edgeprec.cuda_library import cuda_call, gpu_sm, import_cuda

__all__ = ["CudaMemory", "DeviceMemory"]


class DeviceMemory(Protocol):
    """Memory of one device and a stream on it. Addresses are plain numbers."""

    sm: str  # the GPU's generation, "sm89"
    name: str  # "cuda:0"
    stream: int

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory filled with zeros."""
        ...

    def upload(self, address: int, values: npt.NDArray[Any]) -> None:
        """Copy an array to the device, in the order of the stream."""
        ...

    def download(self, values: npt.NDArray[Any], address: int) -> None:
        """Fill an array from the device, once everything before it on the stream is done."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        ...

    def close(self) -> None:
        """Free everything; calling it twice is harmless."""
        ...


class CudaMemory:
    """Memory of the current CUDA device.

    Raises:
        MissingDependency: cuda-bindings is not installed.
        DeviceError: there is no usable GPU, or a call failed.
    """

    def __init__(self) -> None:
        self._cuda = import_cuda()
        self.sm = gpu_sm(self._cuda)
        self.name = f"cuda:{cuda_call(self._cuda, 'cudaGetDevice')}"
        self._stream: Any = cuda_call(self._cuda, "cudaStreamCreate")
        self.stream = int(self._stream)
        self._blocks: list[Any] = []

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory filled with zeros."""
        address = cuda_call(self._cuda, "cudaMalloc", size_bytes)
        self._blocks.append(address)
        cuda_call(self._cuda, "cudaMemset", address, 0, size_bytes)
        return int(address)

    def upload(self, address: int, values: npt.NDArray[Any]) -> None:
        """Copy an array to the device, in the order of the stream; the array may change once this returns."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        size_bytes = values.nbytes
        cuda_call(self._cuda, "cudaMemcpyAsync", address, values.ctypes.data, size_bytes, kind, self._stream)

    def download(self, values: npt.NDArray[Any], address: int) -> None:
        """Fill an array from the device, once everything before it on the stream is done."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        size_bytes = values.nbytes
        cuda_call(self._cuda, "cudaMemcpyAsync", values.ctypes.data, address, size_bytes, kind, self._stream)
        cuda_call(self._cuda, "cudaStreamSynchronize", self._stream)

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        return int(cuda_call(self._cuda, "cudaMemGetInfo"))  # free, then all of it

    def close(self) -> None:
        """Free everything; calling it twice is harmless."""
        for address in self._blocks:
            cuda_call(self._cuda, "cudaFree", address)
        self._blocks.clear()
        if self._stream is not None:
            cuda_call(self._cuda, "cudaStreamDestroy", self._stream)
        self._stream = None
