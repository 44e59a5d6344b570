"""What a benchmark's record says of the machine: facts that stay, and what changes while it runs."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgeprec.devices.board import Board
from edgeprec.devices.clocks import read_clocks
from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.thermal import Thermal

__all__ = ["MachineState", "another_machine", "device_facts", "library_versions", "read_state", "unknown_state"]

_LIBRARIES = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "torch": ("torch", "triton"),
    "tensorrt": ("tensorrt", "tensorrt-rtx", "tensorrt_rtx_cu13"),
}
_PEAK = re.compile(r"^VmHWM:\s+(\d{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """Clocks, heat and this process's memory at one moment; None where they cannot be read."""

    clocks: dict[str, object]
    hottest_c: float | None
    process_peak_bytes: int | None
    gpu_peak_bytes: int | None = None  # of torch's allocator; other libraries do not tell

    @property
    def clock_mhz(self) -> dict[str, float]:
        """Return the clocks that tell: of each GPU domain and of the fastest core."""
        gpu, cpu = self.clocks["gpu"], self.clocks["cpu"]
        assert isinstance(gpu, list)
        assert isinstance(cpu, dict)
        found = {f"gpu {entry['node']}": entry["current_hz"] / 1e6 for entry in gpu if entry["current_hz"] is not None}
        return found | ({"cpu": max(cpu["current_khz"]) / 1e3} if cpu["current_khz"] else {})


def read_state(sysfs: Sysfs, *, own: Sysfs | None = None) -> MachineState:
    """Read what changes. ``own`` is where this process's files lie. Never raises."""
    status = (own or Sysfs()).text("proc/self/status").value or ""
    peak = _PEAK.search(status)
    return MachineState(
        clocks=read_clocks(sysfs).to_json(),
        hottest_c=Thermal(sysfs).read(0).hottest_c,
        process_peak_bytes=None if peak is None else int(peak[1]) * 1024,
        gpu_peak_bytes=_gpu_peak_bytes(),
    )


def _gpu_peak_bytes() -> int | None:
    """Ask torch where the engine has loaded it and uses a GPU; it is not imported for the question."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())


def device_facts(board: Board) -> dict[str, Any]:
    """Return what makes two machines comparable or not."""
    jetson = board.jetson
    return {
        "name": board.name,
        "kind": board.kind.value,
        "cpu": board.cpu.name,
        "cpu_cores": board.cpu.cores,
        "cpu_threads": board.cpu.threads,
        "gpus": [gpu.name for gpu in board.gpus],
        "soc": None if jetson is None else jetson.soc,
        "jetpack": None if jetson is None else jetson.jetpack,
        "l4t": None if jetson is None else jetson.l4t,
        "memory_bytes": board.memory.total_bytes,
        "power_mode": board.power_mode,
        "unknown": {entry.part: entry.reason for entry in board.unknown},
    }


def another_machine(reason: str) -> dict[str, Any]:
    """Return the facts of a machine that is not this one: all of them unknown, and why."""
    names = ("name", "kind", "cpu", "cpu_cores", "cpu_threads", "soc", "jetpack", "l4t", "memory_bytes", "power_mode")
    return {**dict.fromkeys(names), "gpus": [], "unknown": {"device": reason}}


def unknown_state(reason: str) -> MachineState:
    """Return the state of a machine that cannot be read."""
    clocks: dict[str, object] = {"gpu": [], "cpu": {"current_khz": []}, "is_locked": None, "reasons": [reason]}
    return MachineState(clocks=clocks, hottest_c=None, process_peak_bytes=None)


def library_versions(engine: str, sysfs: Sysfs | None = None) -> dict[str, str]:
    """Return the versions of what computed, by name; what is not installed is left out."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in ("edgeprec", "numpy", *_LIBRARIES.get(engine, ())):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    driver = (sysfs or Sysfs()).text("sys/module/nvidia/version").value
    return found if driver is None else found | {"nvidia_driver": driver}
