"""Machines that are no Jetson: CPU, memory and GPUs by name, and None where the files do not tell."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from edgeprec.devices.host_memory import read_memory, read_resident_bytes
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.devices.x86_host import Cpu, read_cpu, read_gpus

Plant = Callable[[str], TreeBuilder]


def cpuinfo(name: str, *, packages: int, cores: int, threads_per_core: int) -> str:
    """Return /proc/cpuinfo of a machine."""
    blocks = []
    for package in range(packages):
        for core in range(cores):
            for _ in range(threads_per_core):
                blocks.append(
                    f"processor\t: {len(blocks)}\nmodel name\t: {name}\nphysical id\t: {package}\ncore id\t\t: {core}\n"
                    "flags\t\t: fpu vme\npower management:\n"
                )
    return "\n".join(blocks)


@pytest.mark.parametrize(("packages", "cores", "threads_per_core"), [(1, 8, 2), (2, 56, 2), (1, 1, 1), (2, 3, 1)])
def test_cores_and_threads_are_told_apart(tree: TreeBuilder, packages: int, cores: int, threads_per_core: int) -> None:
    """Physical cores are counted once per package, threads one by one, also where fields are empty."""
    text = cpuinfo("Intel(R) Xeon(R)", packages=packages, cores=cores, threads_per_core=threads_per_core)
    tree.file("proc/cpuinfo", text)
    assert read_cpu(tree.sysfs()) == Cpu(
        name="Intel(R) Xeon(R)", cores=packages * cores, threads=packages * cores * threads_per_core, reason=None
    )


def test_an_arm_cpu_without_a_model_says_so(tree: TreeBuilder) -> None:
    """ARM kernels list parts instead of a name: threads are known, the name is None with a reason."""
    tree.file("proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd42\n\nprocessor\t: 1\nCPU part\t: 0xd42\n")
    cpu = read_cpu(tree.sysfs())
    assert (cpu.name, cpu.cores, cpu.threads) == (None, None, 2)
    assert cpu.reason == "/proc/cpuinfo names no model"


@pytest.mark.parametrize("content", [None, "", "garbage", b"\xff\xfe:\x00"])
def test_a_damaged_cpuinfo_is_a_reason(tree: TreeBuilder, content: str | bytes | None) -> None:
    """Without a usable file everything is None and nothing raises."""
    if content is not None:
        tree.file("proc/cpuinfo", content)
    cpu = read_cpu(tree.sysfs())
    assert (cpu.name, cpu.cores, cpu.threads) == (None, None, None)
    assert cpu.reason


def test_nvidias_driver_lists_its_gpus(plant: Plant) -> None:
    """A GPU is named by the driver's file, with UUID and place on the bus."""
    (gpu,) = read_gpus(plant("x86-nvml").sysfs())
    assert (gpu.name, gpu.vendor, gpu.pci_id) == ("NVIDIA GeForce RTX 4090", "NVIDIA", "0000:01:00.0")
    assert gpu.uuid == "GPU-265c9814-8eb2-ab6e-2b2c-4d3a4ce2b7de"


def test_gpus_of_the_pci_bus_are_added_once(plant: Plant) -> None:
    """Display controllers of other makers appear by vendor; NVIDIA's is not listed twice; other devices not at all."""
    tree = plant("x86-nvml")
    for pci_id, kind, vendor, device in [
        ("0000:01:00.0", "0x030000", "0x10de", "0x2684"),
        ("0000:00:02.0", "0x030000", "0x8086", "0xa780"),
        ("0000:03:00.0", "0x038000", "0x1002", "0x744c"),
        ("0000:04:00.0", "0x030200", "0x10de", "0x2330"),
        ("0000:05:00.0", "0x010802", "0x144d", "0xa80c"),
    ]:
        tree.files(f"sys/bus/pci/devices/{pci_id}", {"class": kind, "vendor": vendor, "device": device})
    assert [(gpu.name, gpu.note) for gpu in read_gpus(tree.sysfs())] == [
        ("NVIDIA GeForce RTX 4090", None),
        ("Intel GPU 0xa780", None),
        ("AMD GPU 0x744c", None),
        ("NVIDIA GPU 0x2330", "its driver is not loaded"),
    ]


def test_a_driver_file_that_fails_still_names_the_maker(plant: Plant) -> None:
    """A GPU whose information cannot be read is listed, with the reason."""
    tree = plant("x86-nvml")
    tree.fail("proc/driver/nvidia/gpus/0000:01:00.0/information", "EIO")
    (gpu,) = read_gpus(tree.sysfs())
    assert (gpu.name, gpu.uuid) == ("NVIDIA GPU", None)
    assert "EIO" in str(gpu.note)


def test_wsl_has_a_gpu_without_a_name(tree: TreeBuilder) -> None:
    """Under WSL there is only /dev/dxg."""
    assert read_gpus(tree.sysfs()) == ()
    tree.file("dev/dxg", "")
    assert "WSL" in str(read_gpus(tree.sysfs())[0].note)


def test_memory_is_told_in_bytes(plant: Plant) -> None:
    """MemTotal and MemAvailable come from /proc/meminfo, in kB there and in bytes here."""
    memory = read_memory(plant("agx-orin-r36").sysfs())
    assert (memory.total_bytes, memory.available_bytes, memory.reason) == (64341328 * 1024, 60012120 * 1024, None)


@pytest.mark.parametrize(
    ("content", "total", "reason"),
    [
        (None, None, "ENOENT"),
        ("", None, "is empty"),
        ("MemTotal:  100 kB\n", 102400, "no MemAvailable"),
        ("MemTotal:  -5 kB\nMemAvailable: x kB\n", None, "no MemTotal and no MemAvailable"),
        ("garbage", None, "no MemTotal"),
    ],
)
def test_damaged_meminfo_is_none(tree: TreeBuilder, content: str | None, total: int | None, reason: str) -> None:
    """What /proc/meminfo does not tell is None with the reason, never 0."""
    if content is not None:
        tree.file("proc/meminfo", content)
    memory = read_memory(tree.sysfs())
    assert (memory.total_bytes, memory.available_bytes) == (total, None)
    assert reason in str(memory.reason)


def test_a_process_that_ended_has_no_memory(tree: TreeBuilder) -> None:
    """jetson_stats#525: ESRCH between listing and reading is None for that process only."""
    for pid in (10, 11):
        tree.file(f"proc/{pid}/statm", "5000 1200 300 1 0 400 0")
    tree.fail("proc/11/statm", errno.ESRCH)
    page = os.sysconf("SC_PAGE_SIZE")
    assert read_resident_bytes(tree.sysfs(), 10).size_bytes == 1200 * page
    ended = read_resident_bytes(tree.sysfs(), 11)
    assert ended.size_bytes is None
    assert "ESRCH" in str(ended.reason)
    tree.file("proc/10/statm", "garbage")
    assert read_resident_bytes(tree.sysfs(), 10).size_bytes is None
