"""Which of a machine's GPUs a CUDA process uses: CUDA_VISIBLE_DEVICES in all its forms, or the PCI ids CUDA reports.

CUDA and NVML may number GPUs differently: NVML goes by PCI id, CUDA by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
Numbers are therefore only certain where all GPUs are of one kind or that order is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GpuIdentity", "Selection", "select_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What tells one GPU from another. ``index`` is NVML's."""

    index: int
    name: str
    uuid: str | None = None
    pci_id: str | None = None
    is_mig: bool = False
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The GPUs in use, in CUDA's order; ``shared`` holds the indexes of those of which only a part is ours."""

    gpus: tuple[GpuIdentity, ...]
    shared: frozenset[int] = frozenset()
    note: str | None = None


def select_gpus(
    gpus: Sequence[GpuIdentity], environ: Mapping[str, str], cuda_pci_ids: Sequence[str] | None = None
) -> Selection:
    """Return the GPUs a CUDA process with this environment sees.

    ``cuda_pci_ids`` (as CUDA reports them) decides where given. Otherwise CUDA_VISIBLE_DEVICES: unset means all; a list
    of numbers, ``GPU-<uuid>`` or ``MIG-<uuid>`` (the beginning of a UUID is enough) is read up to its first entry that
    names no GPU, as CUDA does; an empty list, ``-1`` or ``NoDevFiles`` means none.
    """
    if cuda_pci_ids is not None:
        return _by_pci_id(gpus, cuda_pci_ids)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _selection(gpus, note=None)
    chosen: list[GpuIdentity] = []
    note = None
    for entry in visible.split(","):
        found = _find(gpus, entry.strip())
        if found is None:
            break
        if found not in chosen:
            chosen.append(found)
        if entry.strip().isdigit():
            note = note or _order_doubt(gpus, environ)
    if not chosen:
        note = f"CUDA_VISIBLE_DEVICES={visible!r} leaves no GPU visible"
    return _selection(chosen, note=note)


def _selection(gpus: Sequence[GpuIdentity], *, note: str | None) -> Selection:
    return Selection(gpus=tuple(gpus), shared=frozenset(gpu.index for gpu in gpus if gpu.is_mig), note=note)


def _find(gpus: Sequence[GpuIdentity], entry: str) -> GpuIdentity | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("MIG-"):
        return _mig_parent(gpus, entry)
    if entry.startswith("GPU-"):
        return _only(gpus, lambda gpu: gpu.uuid is not None and gpu.uuid.startswith(entry))
    return None


def _mig_parent(gpus: Sequence[GpuIdentity], entry: str) -> GpuIdentity | None:
    """Return the GPU that holds a MIG instance: by the instance's UUID, the GPU's in the old form, or the only one."""
    if entry.startswith("MIG-GPU-"):
        uuid = entry.removeprefix("MIG-").split("/", maxsplit=1)[0]
        return _only(gpus, lambda gpu: gpu.uuid is not None and gpu.uuid.startswith(uuid))
    found = _only(gpus, lambda gpu: any(uuid.startswith(entry) for uuid in gpu.mig_uuids))
    return found or _only(gpus, lambda gpu: gpu.is_mig and not gpu.mig_uuids)


def _only(gpus: Sequence[GpuIdentity], is_wanted: Callable[[GpuIdentity], bool]) -> GpuIdentity | None:
    wanted = [gpu for gpu in gpus if is_wanted(gpu)]
    return wanted[0] if len(wanted) == 1 else None


def _order_doubt(gpus: Sequence[GpuIdentity], environ: Mapping[str, str]) -> str | None:
    if len({gpu.name for gpu in gpus}) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    return (
        "GPUs of different kinds and CUDA_DEVICE_ORDER is not PCI_BUS_ID: the numbers may name another GPU than CUDA's"
    )


def _by_pci_id(gpus: Sequence[GpuIdentity], cuda_pci_ids: Sequence[str]) -> Selection:
    by_id = {_normal_pci_id(gpu.pci_id): gpu for gpu in gpus if gpu.pci_id is not None}
    missing = [pci_id for pci_id in cuda_pci_ids if _normal_pci_id(pci_id) not in by_id]
    found = [by_id[_normal_pci_id(pci_id)] for pci_id in cuda_pci_ids if pci_id not in missing]
    note = f"NVML lists no GPU at {', '.join(missing)}" if missing else None
    return _selection(list(dict.fromkeys(found)), note=note)


def _normal_pci_id(pci_id: str) -> tuple[int, ...]:
    """Return domain, bus, device, function: CUDA writes ``0000:17:00.0``, NVML ``00000000:17:00.0``."""
    head, _, function = pci_id.lower().partition(".")
    parts = [int(part, 16) for part in head.split(":")]
    return (*[0] * (3 - len(parts)), *parts, int(function or "0", 16))
