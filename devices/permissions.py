"""Device nodes that exist but cannot be opened, and the groups that open them: why a GPU is invisible to a user."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Group", "Permissions", "ShutNode", "open_node", "read_permissions"]

GROUPS = ("video", "render", "jtop")
_FOLDERS = {
    "dev": re.compile(r"nvmap|nvhost-.+|nvidia.*|dxg"),
    "dev/nvgpu/igpu0": re.compile(r".+"),
    "dev/dri": re.compile(r"renderD[0-9]+"),
}
_NOT_NODES = re.compile(r"nvidia-caps.*|nvidia-modeset|nvidia-fs.*")
_SOCKET = "run/jtop.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group that opens devices, and whether this process is in it."""

    name: str
    exists: bool
    is_member: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutNode:
    """A node that exists and cannot be opened, why, and what to do."""

    path: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What this process may open."""

    groups: tuple[Group, ...]
    open_nodes: tuple[str, ...]
    shut_nodes: tuple[ShutNode, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the findings as plain values."""
        return {
            "groups": [{"name": g.name, "exists": g.exists, "is_member": g.is_member} for g in self.groups],
            "open_nodes": list(self.open_nodes),
            "shut_nodes": [{"path": n.path, "reason": n.reason, "fix": n.fix} for n in self.shut_nodes],
            "notes": list(self.notes),
        }


def open_node(path: str) -> None:
    """Open a device node and close it again; nothing is read or written.

    Raises:
        OSError: it cannot be opened.
    """
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def read_permissions(
    sysfs: Sysfs, *, open_path: Callable[[str], None] = open_node, group_ids: Collection[int] | None = None
) -> Permissions:
    """Try the nodes that GPUs need. ``group_ids`` are this process's unless given. Never raises."""
    own = set(os.getgroups()) | {os.getegid()} if group_ids is None else set(group_ids)
    known = _group_ids(sysfs.text("etc/group").value or "")
    groups = tuple(Group(name=name, exists=name in known, is_member=known.get(name) in own) for name in GROUPS)
    opened: list[str] = []
    shut: list[ShutNode] = []
    for node in _nodes(sysfs):
        try:
            open_path(sysfs.absolute(node))
        except OSError as error:
            shut.append(_shut(f"/{node}", error, groups))
        else:
            opened.append(f"/{node}")
    return Permissions(
        groups=groups, open_nodes=tuple(opened), shut_nodes=tuple(shut), notes=tuple(_notes(sysfs, groups))
    )


def _nodes(sysfs: Sysfs) -> list[str]:
    return [
        f"{folder}/{name}"
        for folder, pattern in _FOLDERS.items()
        for name in sysfs.names(folder)
        if pattern.fullmatch(name) and not _NOT_NODES.fullmatch(name) and not sysfs.is_folder(f"{folder}/{name}")
    ]


def _group_ids(text: str) -> dict[str, int]:
    """Return the groups of /etc/group by name: ``video:x:44:user``."""
    entries = (line.split(":") for line in text.splitlines())
    return {entry[0]: int(entry[2]) for entry in entries if len(entry) >= 3 and re.fullmatch(r"[0-9]{1,9}", entry[2])}


def _shut(path: str, error: OSError, groups: tuple[Group, ...]) -> ShutNode:
    name = errno.errorcode.get(error.errno or 0, "an error")
    if error.errno == errno.EPERM:
        return ShutNode(
            path=path,
            reason=f"{name}: it exists, and a device policy forbids it",
            fix="remove DeviceAllow=, DevicePolicy= and PrivateDevices= from the unit; give a container the device",
        )
    if error.errno == errno.EACCES:
        wanted = "render" if "/dri/" in path else "video"
        is_member = any(group.name == wanted and group.is_member for group in groups)
        fix = (
            f"look at its owner with ls -l {path}"
            if is_member
            else f"sudo usermod -aG {wanted} $USER, then log in again; in a unit, SupplementaryGroups={wanted}"
        )
        return ShutNode(path=path, reason=f"{name}: this user may not open it", fix=fix)
    return ShutNode(
        path=path,
        reason=f"{name}: {error.strerror or 'it cannot be opened'}",
        fix="its driver does not answer: see dmesg",
    )


def _notes(sysfs: Sysfs, groups: tuple[Group, ...]) -> list[str]:
    notes = []
    if sysfs.is_folder(_SOCKET):
        notes.append(f"/{_SOCKET} is a directory: the service was down when the container started")
    elif sysfs.exists(_SOCKET) and any(group.name == "jtop" and not group.is_member for group in groups):
        notes.append("not in the group jtop: sudo usermod -aG jtop $USER, then log in again (see id -nG)")
    if sysfs.exists("dev/nvidia0") and not sysfs.exists("dev/nvidia-uvm"):
        notes.append("/dev/nvidia-uvm is missing, and CUDA needs it: run nvidia-modprobe -u, or nvidia-persistenced")
    return notes
