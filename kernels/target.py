"""What a device can do that the kernels make use of. Nothing here asks the hardware at import."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

__all__ = ["KernelTarget", "target_of"]

_HOPPER = (9, 0)
_INTERPRETED_BYTES = 227 << 10
_LEAST_BYTES = 99 << 10  # of any GPU from SM 80 on


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTarget:
    """The compile-time switches of a device."""

    name: str  # the driver's name, or "cpu"
    has_ptx: bool  # inline PTX, NVIDIA only
    has_dependent_launch: bool  # programmatic dependent launch, SM 90 on
    multiprocessors: int
    shared_bytes: int  # that one program may have


@lru_cache
def target_of(device: torch.device) -> KernelTarget:
    """Return the switches of ``device``. A CPU has none: Triton's interpreter runs there, for tests."""
    if device.type != "cuda":
        return KernelTarget(
            name="cpu",
            has_ptx=False,
            has_dependent_launch=False,
            multiprocessors=1,
            shared_bytes=_INTERPRETED_BYTES,
        )
    properties = torch.cuda.get_device_properties(device)
    is_nvidia = torch.version.hip is None
    return KernelTarget(
        name=properties.name,
        has_ptx=is_nvidia,
        has_dependent_launch=is_nvidia and (properties.major, properties.minor) >= _HOPPER,
        multiprocessors=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", _LEAST_BYTES),
    )
