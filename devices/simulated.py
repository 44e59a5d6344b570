"""A Jetson in a temporary folder, for tests of applications and for trying things out without the hardware.

    with simulated("agx-orin") as board:
        sensor = board.sensor()
        board.set_power("VDD_GPU_SOC", 9000)
        sensor.read()

The folder holds the kernel files of the real board: the sensor that reads them is the one that reads the real board,
with its layout, labels, errors and resolution. Only the figures are scripted, and the source says so.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from edgeprec.devices.board_trees import plant_tree
from edgeprec.devices.ina3221 import Ina3221Sensor
from edgeprec.devices.ina_channels import Channel
from edgeprec.devices.ina_rails import find_rails
from edgeprec.devices.sensor import Rail, Sample, Total
from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.tree_builder import TreeBuilder
from edgeprec.errors import ConfigError, DeviceError

__all__ = ["SIMULATED_BOARDS", "Profile", "SimulatedBoard", "SimulatedSensor", "simulated"]

Profile = Callable[[float], Mapping[str, float]]  # seconds since the start -> mW by rail label

SIMULATED_BOARDS: Mapping[str, str] = {
    "nano": "nano-r32",
    "tx2": "tx2-r32",
    "xavier-nx": "xavier-nx-r35",
    "agx-xavier": "agx-xavier-r32",
    "orin-nano": "orin-nano-r36",
    "orin-nx": "orin-nx-r35",
    "agx-orin": "agx-orin-r36",
    "thor": "thor-r38",
}


def simulated(
    board: str,
    *,
    profile: Profile | None = None,
    directory: Path | None = None,
    lag_ms: float = 0.0,
    clock: Callable[[], int] = time.monotonic_ns,
) -> SimulatedBoard:
    """Build a board: nano, tx2, xavier-nx, agx-xavier, orin-nano, orin-nx, agx-orin or thor.

    ``profile`` gives the power of the rails over time; rails it does not name keep the idle power of a published dump.
    ``directory`` is an empty or new folder to build in, which stays; without it a temporary one, removed on closing.
    ``lag_ms`` lets the rails follow their script as the averaging of a chip does, exponentially.

    Raises:
        ConfigError: there is no such board, or the directory is not empty.
    """
    if board not in SIMULATED_BOARDS:
        raise ConfigError(f"there is no simulated board {board!r}: choose one of {', '.join(SIMULATED_BOARDS)}")
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty: a simulated board needs a folder of its own")
    return SimulatedBoard(board, profile=profile, directory=directory, lag_ms=lag_ms, clock=clock)


class SimulatedBoard:
    """A board whose rails show what they are told. Get one from ``simulated``."""

    def __init__(
        self,
        name: str,
        *,
        profile: Profile | None,
        directory: Path | None,
        lag_ms: float,
        clock: Callable[[], int],
    ) -> None:
        self.name = name
        self.root = Path(tempfile.mkdtemp(prefix="edgeprec-board-")) if directory is None else directory
        self._remove = weakref.finalize(self, shutil.rmtree, self.root, True) if directory is None else None
        self._tree: TreeBuilder = plant_tree(SIMULATED_BOARDS[name], self.root)
        found = find_rails(self._tree.sysfs())
        self._channels: dict[str, Channel] = {channel.label: channel for channel in found.channels}
        self._millivolts = {label: self.sysfs.number(c.voltage).value or 1.0 for label, c in self._channels.items()}
        self._steps_mw = {rail.label: rail.step for rail in found.rails}
        self._lock = threading.RLock()  # a meter's thread reads while the test's thread scripts
        self._profile = profile
        self._lag_ns = lag_ms * 1e6
        self._clock = clock
        self._start_ns = self._updated_ns = clock()
        self._targets_mw = {label: self._read_mw(label) for label in self._channels}
        self._shown_mw = dict(self._targets_mw)
        self.is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the rails."""
        return tuple(self._channels)

    @property
    def sysfs(self) -> Sysfs:
        """Return a reader of the board's files that fails where the real board's files fail."""
        return self._tree.sysfs()

    def sensor(self) -> SimulatedSensor:
        """Return a sensor that reads the board's rails; the board stays open when it is closed."""
        return SimulatedSensor(self)

    def set_power(self, label: str, mw: float) -> None:
        """Let a rail draw so much from now on, negative power too. A profile that names the rail overrides it.

        Raises:
            ConfigError: the board has no such rail.
        """
        self._require(label)
        with self._lock:
            self.update()
            self._targets_mw[label] = mw
            self.update()

    def power_mw(self, label: str) -> float:
        """Return what a rail really draws, before the chip rounds it to its steps.

        Raises:
            ConfigError: the board has no such rail.
        """
        self._require(label)
        return self._shown_mw[label]

    def update(self) -> None:
        """Write the power of this moment into the files. Every read of the board's sensors does this first."""
        with self._lock:
            if self.is_open:
                self._follow_script(self._clock())

    def break_rail(self, label: str, code: int) -> None:
        """Let every read of a rail fail with an errno, as a real chip does.

        Raises:
            ConfigError: the board has no such rail.
        """
        self._require(label)
        channel = self._channels[label]
        self._tree.fail(channel.current if channel.power is None else channel.power, code)

    def mend_rail(self, label: str) -> None:
        """Take ``break_rail`` back.

        Raises:
            ConfigError: the board has no such rail.
        """
        self._require(label)
        channel = self._channels[label]
        self._tree.mend(channel.current if channel.power is None else channel.power)

    def set_temperature(self, zone: int, celsius: float) -> None:
        """Let a thermal zone show a temperature."""
        self._write(f"sys/class/thermal/thermal_zone{zone}/temp", round(celsius * 1000))

    def set_power_mode(self, number: int) -> None:
        """Let nvpmodel's state name a power mode."""
        self._write("var/lib/nvpmodel/status", f"pmode:{number:04d}")

    def close(self) -> None:
        """Remove a temporary folder; sensors of the board end with an error. Calling it twice is harmless."""
        with self._lock:
            self.is_open = False
            if self._remove is not None:
                self._remove()

    def _follow_script(self, now_ns: int) -> None:
        if self._profile is not None:
            script = self._profile((now_ns - self._start_ns) / 1e9)
            for label, mw in script.items():
                self._require(label)
                self._targets_mw[label] = mw
        follows = 1.0 if self._lag_ns <= 0 else 1 - math.exp(-(now_ns - self._updated_ns) / self._lag_ns)
        self._updated_ns = now_ns
        for label, target_mw in self._targets_mw.items():
            shown_mw = self._shown_mw[label] + (target_mw - self._shown_mw[label]) * follows
            if shown_mw != self._shown_mw[label]:
                self._shown_mw[label] = shown_mw
                self._show(self._channels[label], shown_mw)

    def _require(self, label: str) -> None:
        if label not in self._channels:
            raise ConfigError(f"{self.name} has no rail {label!r}: it has {', '.join(self._channels)}")

    def _read_mw(self, label: str) -> float:
        power_mw = self._channels[label].read_mw(self.sysfs).value
        assert power_mw is not None, f"the tree of {self.name} has no figure for {label}"
        return power_mw

    def _show(self, channel: Channel, mw: float) -> None:
        step_mw = self._steps_mw[channel.label]
        if step_mw is not None:
            mw = round(mw / step_mw) * step_mw
        milliamperes = round(mw * 1000 / self._millivolts[channel.label])
        self._write(channel.current, milliamperes)
        if channel.power is not None:
            self._write(channel.power, round(mw * channel.power_per_mw))

    def _write(self, path: str, content: str | int) -> None:
        """Replace a file in one step, so that another process never sees half of it."""
        target = self.root / path
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_text(f"{content}\n", encoding="utf-8")
        os.replace(fresh, target)


class SimulatedSensor:
    """The sensor of a simulated board: the real one, over files that are brought up to date before each read."""

    def __init__(self, board: SimulatedBoard, *, owns_board: bool = False) -> None:
        self._board = board
        self._owns_board = owns_board
        self._inner = Ina3221Sensor.open(board.root, reader=board._tree.read, clock=board._clock)
        self.source = f"simulated:{board.name}"
        self.rails: tuple[Rail, ...] = self._inner.rails
        self.total: Total | None = self._inner.total
        self.period_ms = self._inner.period_ms
        lags = [lag for lag in (self._inner.lag_ms, board._lag_ns / 1e6) if lag]
        self.lag_ms: float | None = sum(lags) if lags else None
        notes = [f"the board is simulated ({board.name})", self._inner.total_note]
        self.total_note = "; ".join(note for note in notes if note)

    @property
    def board(self) -> SimulatedBoard:
        """Return the board."""
        return self._board

    def read(self) -> Sample:
        """Read all rails once.

        Raises:
            DeviceError: the board was closed.
        """
        if not self._board.is_open:
            raise DeviceError(f"the simulated board {self._board.name} was closed")
        self._board.update()
        return self._inner.read()

    def close(self) -> None:
        """Close the board where the sensor is all that there is of it; calling it twice is harmless."""
        if self._owns_board:
            self._board.close()
