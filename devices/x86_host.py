"""CPU and GPUs of a machine that is no Jetson, by name, from /proc and the PCI bus: no library is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Cpu", "HostGpu", "read_cpu", "read_gpus"]

_NVIDIA = "proc/driver/nvidia/gpus"
_PCI = "sys/bus/pci/devices"
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380")
_FIELD = re.compile(r"^([^:\n]+?)[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor. ``cores`` counts physical cores where the kernel tells them apart."""

    name: str | None
    cores: int | None
    threads: int | None
    reason: str | None

    def to_json(self) -> dict[str, object]:
        """Return the processor as plain values."""
        return {"name": self.name, "cores": self.cores, "threads": self.threads, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """A graphics processor. ``uuid`` is NVIDIA's; a GPU whose driver is not loaded has a vendor only."""

    name: str
    vendor: str | None
    pci_id: str | None
    uuid: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the GPU as plain values."""
        return {
            "name": self.name,
            "vendor": self.vendor,
            "pci_id": self.pci_id,
            "uuid": self.uuid,
            "note": self.note,
        }


def read_cpu(sysfs: Sysfs) -> Cpu:
    """Read /proc/cpuinfo. Never raises."""
    text, reason, _ = sysfs.text("proc/cpuinfo")
    if text is None:
        return Cpu(name=None, cores=None, threads=None, reason=reason)
    fields = _FIELD.findall(text)
    names = [value for key, value in fields if key in ("model name", "Model", "Hardware") and value]
    threads = sum(key == "processor" for key, _ in fields)
    packages = [value for key, value in fields if key == "physical id"]
    core_ids = [value for key, value in fields if key == "core id"]
    cores = set(zip(packages, core_ids, strict=True)) if len(packages) == len(core_ids) else set()
    return Cpu(
        name=names[0] if names else None,
        cores=len(cores) or None,
        threads=threads or None,
        reason=None if names else "/proc/cpuinfo names no model",
    )


def read_gpus(sysfs: Sysfs) -> tuple[HostGpu, ...]:
    """Return the GPUs: NVIDIA's as their driver lists them, the others as the PCI bus does. Never raises."""
    listed = [_nvidia_gpu(sysfs, pci_id) for pci_id in sysfs.names(_NVIDIA)]
    known = {gpu.pci_id for gpu in listed}
    others = [_pci_gpu(sysfs, pci_id) for pci_id in sysfs.names(_PCI) if pci_id not in known]
    found = [*listed, *(gpu for gpu in others if gpu is not None)]
    if not found and sysfs.exists("dev/dxg"):
        found.append(HostGpu(name="GPU of Windows", vendor=None, pci_id=None, note="WSL: only NVML can tell more"))
    return tuple(found)


def _nvidia_gpu(sysfs: Sysfs, pci_id: str) -> HostGpu:
    text, reason, _ = sysfs.text(f"{_NVIDIA}/{pci_id}/information")
    fields = dict(_FIELD.findall(text or ""))
    uuid = fields.get("GPU UUID")
    return HostGpu(
        name=fields.get("Model") or "NVIDIA GPU",
        vendor="NVIDIA",
        pci_id=pci_id,
        uuid=uuid if uuid and "?" not in uuid else None,
        note=reason,
    )


def _pci_gpu(sysfs: Sysfs, pci_id: str) -> HostGpu | None:
    kind = sysfs.text(f"{_PCI}/{pci_id}/class").value
    if kind is None or kind[:6] not in _DISPLAY_CLASSES:
        return None
    code = sysfs.text(f"{_PCI}/{pci_id}/vendor").value
    vendor = _VENDORS.get(code or "")
    device = sysfs.text(f"{_PCI}/{pci_id}/device").value
    note = "its driver is not loaded" if vendor == "NVIDIA" else None
    return HostGpu(
        name=f"{vendor or code or 'unknown'} GPU {device or ''}".strip(), vendor=vendor, pci_id=pci_id, note=note
    )
