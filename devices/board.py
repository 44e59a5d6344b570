"""Everything a report says about the machine, read once: identity, memory, power mode, clocks, heat, permissions.

No part can take another one down: what cannot be read is None, and ``unknown`` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from edgeprec.devices.clocks import Clocks, read_clocks
from edgeprec.devices.current_limits import CurrentLimit, read_current_limits
from edgeprec.devices.host_memory import HostMemory, read_memory
from edgeprec.devices.jetson_identity import JetsonIdentity, read_identity
from edgeprec.devices.overcurrent import Protection, read_protection
from edgeprec.devices.permissions import Permissions, read_permissions
from edgeprec.devices.power_mode import PowerModes, read_power_modes
from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.thermal import Thermal, ThermalReading
from edgeprec.devices.tool import RunTool, run_tool
from edgeprec.devices.x86_host import Cpu, HostGpu, read_cpu, read_gpus

__all__ = ["Board", "BoardKind", "Unknown", "read_board"]


class BoardKind(StrEnum):
    """What sort of machine it is."""

    JETSON = "jetson"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A part of the report that is not known, and why."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A machine at one moment. ``jetson`` and ``power_modes`` are None on machines that are no Jetson."""

    kind: BoardKind
    name: str | None
    jetson: JetsonIdentity | None
    cpu: Cpu
    gpus: tuple[HostGpu, ...]
    memory: HostMemory
    power_modes: PowerModes | None
    clocks: Clocks
    thermal: ThermalReading
    protection: Protection
    current_limits: tuple[CurrentLimit, ...]
    permissions: Permissions
    unknown: tuple[Unknown, ...]

    @property
    def power_mode(self) -> str | None:
        """Return what a reading of energy calls the power mode."""
        return None if self.power_modes is None else self.power_modes.label

    def to_json(self) -> dict[str, object]:
        """Return the report as plain values."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "jetson": None if self.jetson is None else self.jetson.to_json(),
            "cpu": self.cpu.to_json(),
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "memory": self.memory.to_json(),
            "power_mode": self.power_mode,
            "power_modes": None if self.power_modes is None else self.power_modes.to_json(),
            "clocks": self.clocks.to_json(),
            "thermal": self.thermal.to_json(),
            "protection": self.protection.to_json(),
            "current_limits": [limit.to_json() for limit in self.current_limits],
            "permissions": self.permissions.to_json(),
            "unknown": [{"part": entry.part, "reason": entry.reason} for entry in self.unknown],
        }


def read_board(sysfs: Sysfs | None = None, *, run: RunTool = run_tool) -> Board:
    """Read the machine whose files ``sysfs`` reads, this one unless given. Takes two seconds at most, never raises."""
    files = Sysfs() if sysfs is None else sysfs
    jetson = read_identity(files)
    cpu, memory, thermal, clocks = read_cpu(files), read_memory(files), Thermal(files).read(0), read_clocks(files)
    modes = None if jetson is None else read_power_modes(files, run=run)
    return Board(
        kind=BoardKind.HOST if jetson is None else BoardKind.JETSON,
        name=cpu.name if jetson is None else jetson.name,
        jetson=jetson,
        cpu=cpu,
        gpus=() if jetson is not None else read_gpus(files),
        memory=memory,
        power_modes=modes,
        clocks=clocks,
        thermal=thermal,
        protection=read_protection(files),
        current_limits=read_current_limits(files),
        permissions=read_permissions(files),
        unknown=tuple(_unknown(jetson, cpu, memory, modes, clocks, thermal)),
    )


def _unknown(
    jetson: JetsonIdentity | None,
    cpu: Cpu,
    memory: HostMemory,
    modes: PowerModes | None,
    clocks: Clocks,
    thermal: ThermalReading,
) -> Iterator[Unknown]:
    if jetson is not None:
        yield from (Unknown(part=part, reason=reason) for part, reason in jetson.reasons)
        if clocks.is_locked is None:
            yield Unknown(part="clocks", reason="; ".join(clocks.reasons))
    elif cpu.reason is not None:
        yield Unknown(part="cpu", reason=cpu.reason)
    if memory.reason is not None:
        yield Unknown(part="memory", reason=memory.reason)
    if modes is not None and modes.reason is not None:
        yield Unknown(part="power_mode", reason=modes.reason)
    if thermal.hottest_c is None:
        yield Unknown(part="temperature", reason="no thermal zone can be read")
