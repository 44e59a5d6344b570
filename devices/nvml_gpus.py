"""What NVML says about the GPUs of a machine, each fact by itself: one that is refused is None with its reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgeprec.devices.nvml_library import NvmlError, NvmlLibrary, as_text
from edgeprec.devices.visible_gpus import GpuIdentity
from edgeprec.errors import DeviceError

__all__ = ["GpuFacts", "averages_power", "identify_gpu", "list_gpus", "reach_gpus", "read_gpu_facts"]

_log = logging.getLogger(__name__)

_GA100_NAMES = ("A100", "A800", "A30")
_AMPERE = 7

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU. ``reasons`` maps the name of each field that is None to why."""

    identity: GpuIdentity
    driver: str | None
    memory_bytes: int | None
    power_limit_mw: float | None
    utilisation_percent: float | None
    reasons: Mapping[str, str] = field(default_factory=dict)


def list_gpus(library: Any = None) -> tuple[GpuFacts, ...]:
    """Return the facts of every GPU that NVML lists.

    Raises:
        DeviceError: NVML cannot be used at all.
    """
    nvml = NvmlLibrary.open(library)
    try:
        handles = reach_gpus(nvml).items()
        return tuple(read_gpu_facts(nvml, handle, identify_gpu(nvml, index, handle)) for index, handle in handles)
    finally:
        nvml.close()


def identify_gpu(nvml: NvmlLibrary, index: int, handle: object) -> GpuIdentity:
    """Return what tells this GPU from others; parts that NVML refuses are None."""
    reasons: dict[str, str] = {}
    pci = _fact(reasons, "pci_id", lambda: as_text(nvml.ask("nvmlDeviceGetPciInfo", handle).busId))
    mode = _fact(reasons, "mig", lambda: int(nvml.ask("nvmlDeviceGetMigMode", handle)[0]))
    return GpuIdentity(
        index=index,
        name=_fact(reasons, "name", lambda: nvml.ask_text("nvmlDeviceGetName", handle)) or f"GPU {index}",
        uuid=_fact(reasons, "uuid", lambda: nvml.ask_text("nvmlDeviceGetUUID", handle)),
        pci_id=pci,
        is_mig=bool(mode),
        mig_uuids=_mig_uuids(nvml, handle) if mode else (),
    )


def read_gpu_facts(nvml: NvmlLibrary, handle: object, identity: GpuIdentity) -> GpuFacts:
    """Return what can be read about one GPU now."""
    reasons: dict[str, str] = {}

    def utilisation() -> float:
        return float(nvml.ask("nvmlDeviceGetUtilizationRates", handle).gpu)

    if identity.is_mig:
        reasons["utilisation_percent"] = "a GPU split by MIG has no utilisation of its own"
    return GpuFacts(
        identity=identity,
        driver=_fact(reasons, "driver", lambda: nvml.ask_text("nvmlSystemGetDriverVersion")),
        memory_bytes=_fact(reasons, "memory_bytes", lambda: int(nvml.ask("nvmlDeviceGetMemoryInfo", handle).total)),
        power_limit_mw=_fact(
            reasons, "power_limit_mw", lambda: float(nvml.ask("nvmlDeviceGetPowerManagementLimit", handle))
        ),
        utilisation_percent=None if identity.is_mig else _fact(reasons, "utilisation_percent", utilisation),
        reasons=reasons,
    )


def reach_gpus(nvml: NvmlLibrary) -> dict[int, object]:
    """Return the handles of the GPUs that can be reached, by index; one that cannot does not hide the others.

    Raises:
        DeviceError: NVML lists GPUs, but none can be reached.
    """
    handles: dict[int, object] = {}
    refusals: list[str] = []
    for index in range(int(nvml.ask("nvmlDeviceGetCount"))):
        try:
            handles[index] = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        except NvmlError as error:
            refusals.append(f"GPU {index}: {error}")
    if refusals and not handles:
        raise DeviceError("NVML lists GPUs but none can be reached: " + "; ".join(refusals))
    for refusal in refusals:
        _log.warning("a GPU cannot be reached, %s", refusal)
    return handles


def averages_power(nvml: NvmlLibrary, handle: object, name: str) -> bool:
    """Return whether nvmlDeviceGetPowerUsage gives the mean of the last second: Ampere and newer, GA100 excepted."""
    try:
        generation = int(nvml.ask("nvmlDeviceGetArchitecture", handle))
    except NvmlError:
        return False
    return generation >= _AMPERE and not any(f" {chip}" in f" {name}" for chip in _GA100_NAMES)


def _mig_uuids(nvml: NvmlLibrary, handle: object) -> tuple[str, ...]:
    try:
        count = int(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle))
    except NvmlError:
        return ()
    uuids = []
    for index in range(count):
        try:
            instance = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuids.append(nvml.ask_text("nvmlDeviceGetUUID", instance))
        except NvmlError:
            continue  # slots without an instance answer "not found"
    return tuple(uuids)


def _fact(reasons: dict[str, str], name: str, read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except NvmlError as error:
        reasons[name] = str(error)
        return None
