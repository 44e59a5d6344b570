"""Available memory from /proc and control groups of both versions, under a made-up root."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeprec.available_memory import read_available_memory
from edgeprec.errors import DeviceError

MIB = 1 << 20


def machine(root: Path, *, available_mib: int = 1000, cgroup: str = "0::/\n") -> Path:
    """Write /proc of a machine."""
    (root / "proc/self").mkdir(parents=True)
    lines = ["MemTotal: 4096000 kB", f"MemAvailable: {available_mib * 1024} kB", "HugePages_Total: 0"]
    (root / "proc/meminfo").write_text("\n".join(lines) + "\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def group_v2(root: Path, path: str, *, limit: str, current_mib: int, inactive_file_mib: int = 0) -> None:
    """Write a group of version 2."""
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{current_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file_mib * MIB}\nactive_file 7\n")


def group_v1(root: Path, path: str, *, limit: int, usage_mib: int) -> None:
    """Write a group of version 1."""
    folder = root / "sys/fs/cgroup/memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"total_inactive_file {10 * MIB}\n")


def test_machine_alone(tmp_path: Path) -> None:
    """Without groups the machine's own figure is the bound."""
    found = read_available_memory(machine(tmp_path))
    assert (found.size_bytes, found.bound) == (1000 * MIB, "MemAvailable")


def test_version_2_limit(tmp_path: Path) -> None:
    """A container's limit less what it uses, its droppable page cache given back."""
    machine(tmp_path, cgroup="0::/app\n")
    group_v2(tmp_path, "app", limit=str(500 * MIB), current_mib=200, inactive_file_mib=50)
    found = read_available_memory(tmp_path)
    assert found.size_bytes == 350 * MIB
    assert found.bound == "the limit of control group /app"


def test_version_2_limit_of_a_group_above(tmp_path: Path) -> None:
    """A systemd slice above the process's own group binds too."""
    machine(tmp_path, cgroup="0::/slice/app\n")
    group_v2(tmp_path, "slice", limit=str(300 * MIB), current_mib=100)
    group_v2(tmp_path, "slice/app", limit="max", current_mib=50)
    assert read_available_memory(tmp_path).size_bytes == 200 * MIB


def test_version_1_limit(tmp_path: Path) -> None:
    """Older systems name the same facts otherwise."""
    machine(tmp_path, cgroup="5:cpu:/x\n4:memory:/docker/abc\n")
    group_v1(tmp_path, "docker/abc", limit=400 * MIB, usage_mib=100)
    assert read_available_memory(tmp_path).size_bytes == 310 * MIB


def test_version_1_path_that_a_container_does_not_see(tmp_path: Path) -> None:
    """Inside a container only the mount's root is there, and it is the container's own group."""
    machine(tmp_path, cgroup="4:hugetlb,memory:/docker/abc\n")
    group_v1(tmp_path, "", limit=400 * MIB, usage_mib=100)
    assert read_available_memory(tmp_path).size_bytes == 310 * MIB


def test_version_1_without_limit(tmp_path: Path) -> None:
    """Version 1 writes no limit as a huge number."""
    machine(tmp_path, cgroup="4:memory:/\n")
    group_v1(tmp_path, "", limit=9223372036854771712, usage_mib=100)
    assert read_available_memory(tmp_path).bound == "MemAvailable"


def test_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """Usage may pass a limit that was lowered: what is left is nothing, not a negative number."""
    machine(tmp_path, cgroup="0::/app\n")
    group_v2(tmp_path, "app", limit=str(100 * MIB), current_mib=200)
    assert read_available_memory(tmp_path).size_bytes == 0


@pytest.mark.parametrize("content", ["", "garbage", "-5"])
def test_unreadable_group_sets_no_bound(tmp_path: Path, content: str) -> None:
    """A group that does not say a limit leaves the machine's figure."""
    machine(tmp_path, cgroup="0::/app\nnonsense\n")
    group_v2(tmp_path, "app", limit=content, current_mib=1)
    assert read_available_memory(tmp_path).bound == "MemAvailable"


@pytest.mark.parametrize("text", [None, "MemTotal: 5 kB\n", "MemAvailable: x kB\n"])
def test_machine_that_does_not_say(tmp_path: Path, text: str | None) -> None:
    """No figure is an error, never a guess."""
    machine(tmp_path)
    (tmp_path / "proc/meminfo").unlink()
    if text is not None:
        (tmp_path / "proc/meminfo").write_text(text)
    with pytest.raises(DeviceError, match="MemAvailable"):
        read_available_memory(tmp_path)
