"""Memory of the machine and of one process, from /proc. On a Jetson it is the GPU's memory too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["HostMemory", "Measure", "read_memory", "read_resident_bytes"]

_LINE = re.compile(r"^(MemTotal|MemAvailable):\s+(\d{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What the kernel manages, which is less than the nominal size; None where /proc/meminfo does not tell."""

    total_bytes: int | None
    available_bytes: int | None
    reason: str | None

    def to_json(self) -> dict[str, object]:
        """Return the sizes as plain values."""
        return {"total_bytes": self.total_bytes, "available_bytes": self.available_bytes, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of bytes, or None and why."""

    size_bytes: int | None
    reason: str | None = None


def read_memory(sysfs: Sysfs) -> HostMemory:
    """Read /proc/meminfo. Never raises."""
    text, reason, _ = sysfs.text("proc/meminfo")
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes in _LINE.findall(text or "")}
    missing = [name for name in ("MemTotal", "MemAvailable") if name not in sizes]
    if text is not None and missing:
        reason = f"/proc/meminfo has no {' and no '.join(missing)}"
    return HostMemory(total_bytes=sizes.get("MemTotal"), available_bytes=sizes.get("MemAvailable"), reason=reason)


def read_resident_bytes(sysfs: Sysfs, pid: int) -> Measure:
    """Return the memory a process holds; None where it has ended meanwhile. Never raises."""
    text, reason, _ = sysfs.text(f"proc/{pid}/statm")
    if text is None:
        return Measure(size_bytes=None, reason=reason)
    pages = text.split()[1:2]
    if not pages or not re.fullmatch(r"[0-9]{1,12}", pages[0]):
        return Measure(size_bytes=None, reason=f"statm of {pid} holds {text[:32]!r}")
    return Measure(size_bytes=int(pages[0]) * os.sysconf("SC_PAGE_SIZE"))
