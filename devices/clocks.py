"""Clocks of GPU and CPU, and whether they are locked, from the files anyone may read; ``jetson_clocks`` needs root."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs

__all__ = ["Clocks", "CpuClocks", "GpuClock", "read_clocks"]

_DEVFREQ = "sys/class/devfreq"
_CPUS = "sys/devices/system/cpu"
_GPU_NODE = re.compile(r"(?:.+\.)?(?:gpu|gp10b|gv11b|ga10b|gb10b)|gpu-gpc-[0-9]+|gpu-nvd-[0-9]+")
_GPU_OF_NODES = frozenset({"gpu", "gp10b", "gv11b", "ga10b", "gb10b"})
_LOADS = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load")
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_CORE = re.compile(r"cpu[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClock:
    """One clock domain of the GPU; None where a file cannot be read."""

    node: str
    current_hz: int | None
    minimum_hz: int | None
    maximum_hz: int | None
    governor: str | None
    load_percent: float | None

    @property
    def is_gated(self) -> bool | None:
        """Return whether the GPU is powered down: its clock then reads 0."""
        return None if self.current_hz is None else self.current_hz == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuClocks:
    """The cores' limits that software may set."""

    online: int | None
    current_khz: tuple[int, ...]
    minimum_khz: int | None
    maximum_khz: int | None
    is_locked: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """All clocks. ``is_locked`` is None where GPU and CPU cannot both be judged; ``reasons`` says why."""

    gpu: tuple[GpuClock, ...]
    cpu: CpuClocks
    is_locked: bool | None
    reasons: tuple[str, ...]

    @property
    def is_gpu_gated(self) -> bool | None:
        """Return whether the whole GPU is powered down: idle power taken then is too low for work that wakes it."""
        states = [clock.is_gated for clock in self.gpu if clock.is_gated is not None]
        return all(states) if states else None

    def to_json(self) -> dict[str, object]:
        """Return the clocks as plain values."""
        return {
            "is_locked": self.is_locked,
            "is_gpu_gated": self.is_gpu_gated,
            "gpu": [
                {
                    "node": clock.node,
                    "current_hz": None if clock.is_gated else clock.current_hz,
                    "minimum_hz": clock.minimum_hz,
                    "maximum_hz": clock.maximum_hz,
                    "governor": clock.governor,
                    "load_percent": clock.load_percent,
                }
                for clock in self.gpu
            ],
            "cpu": {
                "online": self.cpu.online,
                "current_khz": list(self.cpu.current_khz),
                "minimum_khz": self.cpu.minimum_khz,
                "maximum_khz": self.cpu.maximum_khz,
                "is_locked": self.cpu.is_locked,
            },
            "reasons": list(self.reasons),
        }


def read_clocks(sysfs: Sysfs) -> Clocks:
    """Read all clocks once. Never raises."""
    gpu = tuple(_gpu_clock(sysfs, node) for node in sysfs.names(_DEVFREQ) if _is_gpu(sysfs, node))
    cpu = _cpu_clocks(sysfs)
    gpu_locked = _are_locked([(clock.minimum_hz, clock.maximum_hz) for clock in gpu])
    reasons = []
    if not gpu:
        reasons.append(f"no GPU under {sysfs.absolute(_DEVFREQ)}: it may appear late in boot")
    elif gpu_locked is None:
        reasons.append("the GPU's frequency limits cannot be read")
    elif all(clock.is_gated for clock in gpu):
        reasons.append("GPU power-gated")
    if cpu.is_locked is None:
        reasons.append("the cores' frequency limits cannot be read")
    is_locked = None if gpu_locked is None or cpu.is_locked is None else gpu_locked and cpu.is_locked
    return Clocks(gpu=gpu, cpu=cpu, is_locked=is_locked, reasons=tuple(reasons))


def _is_gpu(sysfs: Sysfs, node: str) -> bool:
    if _GPU_NODE.fullmatch(node):
        return True
    return sysfs.text(f"{_DEVFREQ}/{node}/device/of_node/name").value in _GPU_OF_NODES


def _gpu_clock(sysfs: Sysfs, node: str) -> GpuClock:
    folder = f"{_DEVFREQ}/{node}"
    loads = (sysfs.number(path).value for path in (f"{folder}/device/load", *_LOADS))
    permille = next((load for load in loads if load is not None), None)
    return GpuClock(
        node=node,
        current_hz=_integer(sysfs, f"{folder}/cur_freq"),
        minimum_hz=_integer(sysfs, f"{folder}/min_freq"),
        maximum_hz=_integer(sysfs, f"{folder}/max_freq"),
        governor=sysfs.text(f"{folder}/governor").value,
        load_percent=None if permille is None else permille / 10,
    )


def _cpu_clocks(sysfs: Sysfs) -> CpuClocks:
    folders = [f"{_CPUS}/{name}/cpufreq" for name in sysfs.names(_CPUS) if _CORE.fullmatch(name)]
    folders = [folder for folder in folders if sysfs.exists(folder)]
    limits = [
        (_integer(sysfs, f"{folder}/scaling_min_freq"), _integer(sysfs, f"{folder}/scaling_max_freq"))
        for folder in folders
    ]
    current = (_integer(sysfs, f"{folder}/scaling_cur_freq") for folder in folders)
    return CpuClocks(
        online=_count_online(sysfs.text(f"{_CPUS}/online").value),
        current_khz=tuple(khz for khz in current if khz is not None),
        minimum_khz=min((low for low, _ in limits if low is not None), default=None),
        maximum_khz=max((high for _, high in limits if high is not None), default=None),
        is_locked=_are_locked(limits),
    )


def _are_locked(limits: list[tuple[int | None, int | None]]) -> bool | None:
    """Return whether every lower limit is its upper one: False as soon as one is not, None where it is not known."""
    if any(low is not None and high is not None and low != high for low, high in limits):
        return False
    return True if limits and all(low is not None and high is not None for low, high in limits) else None


def _count_online(text: str | None) -> int | None:
    """Return how many cores a list such as ``0-3,6`` names, None where it is no such list."""
    if text is None:
        return None
    parts = [_RANGE.fullmatch(part) for part in text.split(",")]
    ranges = [(int(part[1]), int(part[2] or part[1])) for part in parts if part is not None]
    if len(ranges) < len(parts) or any(last < first for first, last in ranges):
        return None
    return sum(last - first + 1 for first, last in ranges)


def _integer(sysfs: Sysfs, path: str) -> int | None:
    value = sysfs.number(path).value
    return None if value is None else int(value)
