"""Which power sensor to use on this machine, what was tried on the way, and why each refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgeprec.devices.null import NullSensor
from edgeprec.devices.sensor import Sensor
from edgeprec.devices.sysfs import Sysfs
from edgeprec.errors import ConfigError, DeviceError

__all__ = ["SOURCES", "Attempt", "Detection", "Opener", "detect", "survey"]

_log = logging.getLogger(__name__)

Opener = Callable[[], Sensor]

SOURCES = ("jetson", "jtop", "nvml", "rapl")  # in the order in which ``auto`` tries them

_FIXES: Mapping[str, str] = {  # where the sensor's own sentence does not end with what to do
    "jetson": "only Jetson boards have these chips; in a container, mount /sys",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of trying one source. ``fix`` is None where ``reason`` tells what to do, or nothing can be done."""

    source: str
    ok: bool
    reason: str | None
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The sensor to use, never None: where nothing can be measured it is the one that says why.

    ``sysfs`` reads the machine the sensor belongs to: this one, or a simulated board.
    """

    sensor: Sensor
    attempts: tuple[Attempt, ...]
    sysfs: Sysfs = field(default_factory=Sysfs, compare=False)

    @property
    def note(self) -> str | None:
        """Return why nothing is measured, None where something is."""
        return None if self.sensor.rails else self.sensor.total_note


def detect(
    prefer: str | None = None, root: Path = Path("/"), *, openers: Mapping[str, Opener] | None = None
) -> Detection:
    """Open the sensor named, or the first of the machine's that knows a total: its own rails, jtop, NVML, RAPL.

    ``prefer`` is ``auto``, ``jetson``, ``jtop``, ``nvml``, ``rapl``, ``replay:FILE``, ``simulated:BOARD`` or ``none``.
    ``root`` is where the machine's files lie. ``openers`` replace the ways to open the four sources.

    Raises:
        ConfigError: ``prefer`` is none of these.
        DeviceError: the sensor asked for by name cannot be used.
    """
    wanted = prefer or "auto"
    kind, has_argument, argument = wanted.partition(":")
    if wanted == "none":
        return _alone(NullSensor("power is not measured: the sensor is set to none"), "none", root)
    if kind == "replay" and argument:
        return _alone(_open_replay(Path(argument)), wanted, root)
    if kind == "simulated" and argument:
        return _open_simulated(argument)
    ways = _openers(root) if openers is None else openers
    if wanted == "auto":
        return _first(ways, root)
    if wanted not in ways or has_argument:
        names = ", ".join(("auto", *SOURCES, "replay:FILE", "simulated:BOARD", "none"))
        raise ConfigError(f"the sensor {wanted!r} is not known: choose one of {names}")
    try:
        return _alone(_open_working(ways[wanted]), wanted, root)
    except DeviceError as error:
        raise DeviceError(f"the sensor {wanted} cannot be used: {error}") from error


def survey(root: Path = Path("/"), *, openers: Mapping[str, Opener] | None = None) -> tuple[Attempt, ...]:
    """Try every source of the machine, close it again, and return what came of each."""
    attempts = []
    for source, attempt, sensor in _tries(_openers(root) if openers is None else openers):
        attempts.append(attempt)
        if sensor is not None:
            _log.debug("%s can be used", source)
            sensor.close()
    return tuple(attempts)


def _first(ways: Mapping[str, Opener], root: Path) -> Detection:
    """Return the first source with a total; else the first that opens at all; else the sensor that says why."""
    attempts: list[Attempt] = []
    without_total: Sensor | None = None
    for _, attempt, sensor in _tries(ways):
        attempts.append(attempt)
        if sensor is None:
            continue
        if sensor.total is not None:
            if without_total is not None:
                without_total.close()
            return Detection(sensor=sensor, attempts=tuple(attempts), sysfs=Sysfs(root))
        if without_total is None:
            without_total = sensor
        else:
            sensor.close()
    chosen = without_total or NullSensor(_nothing(attempts))
    return Detection(sensor=chosen, attempts=tuple(attempts), sysfs=Sysfs(root))


def _tries(ways: Mapping[str, Opener]) -> Iterator[tuple[str, Attempt, Sensor | None]]:
    for source, open_sensor in ways.items():
        try:
            sensor = _open_working(open_sensor)
        except DeviceError as error:
            yield source, Attempt(source=source, ok=False, reason=str(error), fix=_FIXES.get(source)), None
            continue
        yield source, Attempt(source=source, ok=True, reason=sensor.total_note), sensor


def _open_working(open_sensor: Opener) -> Sensor:
    """Open a sensor and read it once: one whose every rail refuses is no sensor.

    Raises:
        DeviceError: it cannot be opened, or nothing of it can be read.
    """
    sensor = open_sensor()
    try:
        sample = sensor.read()
        if all(value is None for value in sample.values.values()):
            raise DeviceError(f"none of its rails can be read: {next(iter(sample.reasons.values()), 'it shows none')}")
    except DeviceError:
        sensor.close()
        raise
    return sensor


def _nothing(attempts: list[Attempt]) -> str:
    reasons = "; ".join(f"{attempt.source}: {attempt.reason}" for attempt in attempts)
    return f"no power sensor can be read ({reasons})"


def _alone(sensor: Sensor, source: str, root: Path) -> Detection:
    attempt = Attempt(source=source, ok=True, reason=sensor.total_note)
    return Detection(sensor=sensor, attempts=(attempt,), sysfs=Sysfs(root))


def _openers(root: Path) -> dict[str, Opener]:
    return {
        "jetson": partial(_open_jetson, root),
        "jtop": partial(_open_jtop, root),
        "nvml": partial(_open_nvml, root),
        "rapl": partial(_open_rapl, root),
    }


def _open_jetson(root: Path) -> Sensor:
    from edgeprec.devices.ina3221 import Ina3221Sensor

    return Ina3221Sensor.open(root)


def _open_jtop(root: Path) -> Sensor:
    from edgeprec.devices.jetson_module import read_module
    from edgeprec.devices.jtop import JtopSensor
    from edgeprec.devices.rail_plans import label_total

    module = read_module(Sysfs(root)).part
    return JtopSensor.open(socket=root / "run/jtop.sock", plan=partial(label_total, module=module))


def _open_nvml(root: Path) -> Sensor:
    if root.absolute() != Path("/"):
        raise DeviceError(f"NVML tells of the machine that runs, not of the files below {root}")
    from edgeprec.devices.nvml import NvmlSensor

    return NvmlSensor.open()


def _open_rapl(root: Path) -> Sensor:
    from edgeprec.devices.rapl import RaplSensor

    return RaplSensor.open(root=root)


def _open_replay(path: Path) -> Sensor:
    from edgeprec.devices.rail_plans import label_total
    from edgeprec.devices.replay import ReplaySensor

    return ReplaySensor.open(path, plan=label_total)


def _open_simulated(board: str) -> Detection:
    from edgeprec.devices.simulated import SimulatedSensor, simulated

    machine = simulated(board)
    sensor = SimulatedSensor(machine, owns_board=True)
    attempt = Attempt(source=f"simulated:{board}", ok=True, reason=sensor.total_note)
    return Detection(sensor=sensor, attempts=(attempt,), sysfs=machine.sysfs)
