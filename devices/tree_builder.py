"""Plants a machine's kernel files into a folder, laid out and linked as the kernel lays them out. Knows no board.

A read that fails cannot be planted as a file: such paths are kept in ``errors`` and raised by ``read``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeprec.devices.sysfs import Sysfs, read_file

__all__ = ["TreeBuilder"]

_I2C = "sys/bus/i2c"


class TreeBuilder:
    """A folder that becomes the root of a machine. All paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.errors: dict[str, int] = {}  # real path -> errno
        self._real_paths: dict[str, str] = {}  # following links costs more than the read itself

    def sysfs(self) -> Sysfs:
        """Return a reader of the tree that raises the errors planted in it."""
        return Sysfs(self.root, reader=self.read)

    def read(self, path: str) -> bytes:
        """Return what a file holds.

        Raises:
            OSError: an error is planted there, or the file cannot be read.
        """
        if self.errors:
            real_path = self._real_paths.get(path) or self._real_paths.setdefault(path, os.path.realpath(path))
            if (code := self.errors.get(real_path)) is not None:
                raise OSError(code, os.strerror(code), path)
        return read_file(path)

    def file(self, path: str, content: str | int | bytes) -> None:
        """Write a file; text and numbers get a line end, bytes and text ending in NUL stay as they are."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
            return
        text = str(content)
        target.write_text(text if text.endswith(("\n", "\0")) else text + "\n", encoding="utf-8")

    def files(self, folder: str, contents: Mapping[str, str | int]) -> None:
        """Write the files of one folder."""
        for name, content in contents.items():
            self.file(f"{folder}/{name}", content)

    def fail(self, path: str, code: int | str) -> None:
        """Make every read of a path fail with errno's number or name, by whatever link it is reached."""
        number = code if isinstance(code, int) else int(getattr(errno, code))
        self.errors[os.path.realpath(self.root / path)] = number

    def mend(self, path: str) -> None:
        """Take back ``fail``."""
        self.errors.pop(os.path.realpath(self.root / path), None)

    def link(self, path: str, target: str) -> None:
        """Make ``path`` a relative link to ``target``."""
        self._real_paths.clear()
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self.root / target, place.parent))

    def i2c_device(self, address: str, driver: str) -> str:
        """Add a chip on a bus, bound to a driver, and return its folder."""
        bus = address.partition("-")[0]
        folder = f"sys/devices/platform/i2c-{bus}/{address}"
        self.file(f"{folder}/name", driver)
        self.link(f"{_I2C}/devices/{address}", folder)
        self.link(f"{_I2C}/drivers/{driver}/{address}", folder)
        return folder

    def hwmon(self, number: int, name: str, device: str) -> str:
        """Add an hwmon folder to a device's folder, reachable through the class as well, and return it."""
        folder = f"{device}/hwmon/hwmon{number}"
        self.file(f"{folder}/name", name)
        self.link(f"{folder}/device", device)
        self.link(f"sys/class/hwmon/hwmon{number}", folder)
        return folder

    def hwmon_chip(self, number: int, driver: str, address: str) -> str:
        """Add a chip of JetPack 5 and newer and return its data folder."""
        return self.hwmon(number, driver, self.i2c_device(address, driver))

    def hwmon_channel(self, folder: str, index: int, label: str | None, mv: int, ma: int) -> None:
        """Add one channel of an INA3221 to its hwmon folder."""
        self.files(folder, {f"in{index}_input": mv, f"curr{index}_input": ma})
        if label is not None:
            self.file(f"{folder}/in{index}_label", label)

    def iio_chip(self, number: int, address: str) -> str:
        """Add an INA3221 of JetPack 4 and return its data folder."""
        device = self.i2c_device(address, "ina3221x")
        folder = f"{device}/iio:device{number}"
        self.file(f"{folder}/name", "ina3221x")
        self.link(f"{device}/iio_device", folder)
        return folder

    def iio_channel(self, folder: str, index: int, label: str, readings: Sequence[int]) -> None:
        """Add one channel of an INA3221 to its iio folder: mV, mA, mW."""
        voltage, current, power = readings
        self.files(
            folder,
            {
                f"rail_name_{index}": label,
                f"in_voltage{index}_input": voltage,
                f"in_current{index}_input": current,
                f"in_power{index}_input": power,
            },
        )

    def zone(self, number: int, kind: str, reading: int | str) -> None:
        """Add a thermal zone: milli-degrees, or the name of the error with which it is read."""
        folder = f"sys/class/thermal/thermal_zone{number}"
        self.files(folder, {"type": kind, "temp": reading if isinstance(reading, int) else 0})
        if isinstance(reading, str):
            self.fail(f"{folder}/temp", reading)

    def devfreq(self, node: str, attributes: Mapping[str, str | int], *, of_node: str | None = None) -> str:
        """Add a device with scalable frequency and return its device's folder."""
        device = f"sys/devices/platform/{node}"
        folder = f"{device}/devfreq/{node}"
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.files(folder, attributes)
        self.link(f"{folder}/device", device)
        self.link(f"sys/class/devfreq/{node}", folder)
        if of_node is not None:
            self.file(f"{device}/of_node/name", of_node + "\0")
        return device

    def cpu(self, core: int, khz: Mapping[str, int]) -> None:
        """Add a core with its frequency limits, by the names behind ``scaling_``."""
        self.files(
            f"sys/devices/system/cpu/cpu{core}/cpufreq", {f"scaling_{name}_freq": value for name, value in khz.items()}
        )
