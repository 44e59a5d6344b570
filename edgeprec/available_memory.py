"""How much memory this process may still take: the machine's and every control group's above it.

Reads /proc and /sys/fs/cgroup (versions 1 and 2) under an injected root. On Jetson the GPU shares this memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeprec.errors import DeviceError

__all__ = ["AvailableMemory", "read_available_memory"]

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as a number of about 2**63


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Bytes that can still be taken, and what sets that bound: ``"MemAvailable"`` or a control group's path."""

    size_bytes: int
    bound: str


@dataclass(frozen=True, slots=True)
class _Files:
    """The names that the two versions of control groups give the same facts."""

    limit: str
    usage: str
    reclaimable: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def read_available_memory(root: Path = Path("/")) -> AvailableMemory:
    """Return the smallest of what the machine and each control group have left.

    A group's page cache that the kernel can drop counts as left. A group that cannot be read sets no bound.

    Raises:
        DeviceError: the machine does not say how much memory is available.
    """
    bounds = [_machine(root / "proc/meminfo"), *_groups(root)]
    return min(bounds, key=lambda bound: bound.size_bytes)


def _machine(meminfo: Path) -> AvailableMemory:
    text = _read(meminfo) or ""
    kilobytes = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if len(line.split()) >= 2}
    if not kilobytes.get("MemAvailable", "").isdigit():
        raise DeviceError(f"{meminfo} has no MemAvailable: expected Linux 3.14 or later")
    return AvailableMemory(1024 * int(kilobytes["MemAvailable"]), "MemAvailable")


def _groups(root: Path) -> Iterator[AvailableMemory]:
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _walk(root / mount, path, _VERSION_2)
        elif "memory" in controllers.split(","):
            yield from _walk(root / "sys/fs/cgroup/memory", path, _VERSION_1)


def _walk(mount: Path, path: str, files: _Files) -> Iterator[AvailableMemory]:
    """Yield the bound of a group and of each group above it, up to the mount.

    In a container the path may be the host's and not be visible: then only the mount itself is.
    """
    folder = mount / path.lstrip("/")
    if not folder.is_dir() or ".." in Path(path).parts:
        folder = mount
    for group in (folder, *folder.parents):
        left = _left_bytes(group, files)
        if left is not None:
            yield AvailableMemory(left, f"the limit of control group /{group.relative_to(mount).as_posix()}")
        if group == mount:
            return


def _left_bytes(group: Path, files: _Files) -> int | None:
    limit, usage = _read(group / files.limit), _read(group / files.usage)
    if limit is None or usage is None or not limit.isdigit() or not usage.isdigit():
        return None  # "max", the root group, or a group that is hidden from us
    if int(limit) >= _NO_LIMIT_BYTES:
        return None
    return max(int(limit) - int(usage) + _reclaimable_bytes(group, files), 0)


def _reclaimable_bytes(group: Path, files: _Files) -> int:
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == files.reclaimable and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:  # absent or hidden: it says nothing
        return None
