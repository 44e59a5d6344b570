"""NVIDIA's CUDA runtime through the package ``cuda-bindings``: what the TensorRT engine allocates and copies with."""

from __future__ import annotations

from typing import Any

from edgeprec.errors import DeviceError, MissingDependency

__all__ = ["cuda_call", "gpu_sm", "import_cuda"]


def import_cuda() -> Any:
    """Return ``cuda.bindings.runtime``.

    Raises:
        MissingDependency: the package is not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MissingDependency(package="cuda-bindings", purpose="the tensorrt engine", extra="tensorrt") from error
    return runtime


def cuda_call(cuda: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the CUDA runtime and return its result, if it has one.

    Raises:
        DeviceError: it returned an error.
    """
    code, *results = getattr(cuda, name)(*arguments)
    if int(code) != 0:
        _, text = cuda.cudaGetErrorString(code)
        words = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise DeviceError(f"{name} failed: {words} (CUDA error {int(code)})")
    return results[0] if results else None


def gpu_sm(cuda: Any = None) -> str:
    """Return the generation of the current GPU, ``"sm87"``.

    Raises:
        MissingDependency: cuda-bindings is not installed.
        DeviceError: there is no usable GPU.
    """
    cuda = import_cuda() if cuda is None else cuda
    attributes = cuda.cudaDeviceAttr
    try:
        device = cuda_call(cuda, "cudaGetDevice")
    except DeviceError as error:
        raise DeviceError(
            f"there is no usable NVIDIA GPU, {error}: install its driver, or a newer one, or use --engine onnxruntime"
        ) from error
    major = cuda_call(cuda, "cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMajor, device)
    minor = cuda_call(cuda, "cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMinor, device)
    return f"sm{major}{minor}"
