"""Which device the torch engine computes on, and in one sentence why it cannot."""

from __future__ import annotations

import sys
from typing import Any

import torch

from edgeprec.available_memory import AvailableMemory, read_available_memory
from edgeprec.bundle import BundleModel
from edgeprec.errors import ConfigError, EngineError
from edgeprec.kernels.dispatch import kernel_backend
from edgeprec.kernels.layout import GROUP_SIZES

__all__ = ["available_memory", "choose_device", "describe_device", "device_errors", "has_usable_gpu", "require_blocks"]


def choose_device(provider: str | None) -> torch.device:
    """Return the device of ``"cpu"`` or ``"cuda"``, or without a wish the GPU where there is one.

    Raises:
        ConfigError: the provider is another one.
        EngineError: a GPU was asked for or found, and the kernels do not run on it.
    """
    if provider not in (None, "cpu", "cuda"):
        raise ConfigError(f"provider is {provider!r}, the torch engine has cpu and cuda: use one of these")
    has_gpu = torch.cuda.is_available()
    if provider == "cuda" and not has_gpu:
        raise EngineError(
            f"provider is 'cuda', torch {torch.__version__} finds no CUDA device: install a torch with CUDA and a "
            "driver, or use --provider cpu"
        )
    if provider == "cpu" or not has_gpu:
        return torch.device("cpu")
    device = torch.device("cuda", torch.cuda.current_device())
    backend = kernel_backend(device)
    if backend.name != "triton":
        raise EngineError(
            f"the torch engine's kernels do not run on this GPU: {backend.reason}; use --engine onnxruntime, or "
            "--provider cpu"
        )
    return device


def has_usable_gpu() -> bool:
    """Return whether there is a GPU that runs the kernels; one that does not is warned of once."""
    if not torch.cuda.is_available():
        return False
    return kernel_backend(torch.device("cuda", torch.cuda.current_device())).name == "triton"


def describe_device(device: torch.device) -> str:
    """Return ``cpu``, or a GPU's index and name."""
    if device.type == "cpu":
        return "cpu"
    return f"{device} {torch.cuda.get_device_name(device)}"


def available_memory(device: torch.device) -> AvailableMemory:
    """Return what can still be taken on ``device``.

    Raises:
        DeviceError: the machine does not say.
        EngineError: the GPU does not answer.
    """
    if device.type == "cpu":
        return read_available_memory()
    try:
        free_bytes, _ = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise EngineError(f"{device} does not say how much memory is free: {reason}") from error
    return AvailableMemory(free_bytes, f"free on {describe_device(device)}")


def device_errors() -> tuple[type[Exception], ...]:
    """Return what torch and Triton raise: RuntimeError for a lost device, Triton's own for a kernel that cannot run."""
    triton: Any = sys.modules.get("triton.errors")
    return (RuntimeError,) if triton is None else (RuntimeError, triton.TritonError)


def require_blocks(model: BundleModel) -> None:
    """Check that the kernels read a bundle's INT4 blocks.

    Raises:
        EngineError: they have another size.
    """
    size = model.entry.int4.group_size
    if size not in GROUP_SIZES:
        known = ", ".join(map(str, GROUP_SIZES))
        raise EngineError(
            f"the {model.role}'s INT4 blocks have {size} weights, the torch engine's kernels take {known}: export the "
            "bundle again with one of these as --group-size, or use --engine onnxruntime"
        )
