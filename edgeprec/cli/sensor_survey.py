"""Which power sensors were tried, and which one measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeprec.errors import DeviceError

if TYPE_CHECKING:
    from edgeprec.devices.detect import Attempt

__all__ = ["SensorFinding", "SensorSurvey", "survey_sensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorFinding:
    """What came of one source; ``note`` is the reason, and what to do about it."""

    name: str
    is_usable: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorSurvey:
    """``source`` measures; where nothing does it is None and ``note`` says why."""

    source: str | None
    rails: tuple[str, ...]
    total: str | None
    note: str | None
    attempts: tuple[SensorFinding, ...]


def survey_sensors(wanted: str) -> SensorSurvey:
    """Open the sensor that ``--sensor`` would, look at it, close it, and try the machine's others.

    Raises:
        ConfigError: ``wanted`` names no sensor there is.
    """
    from edgeprec.devices.detect import detect, survey

    attempts = tuple(_finding(attempt) for attempt in survey())
    try:
        detection = detect(wanted)
    except DeviceError as error:
        return SensorSurvey(source=None, rails=(), total=None, note=str(error), attempts=attempts)
    sensor = detection.sensor
    found = SensorSurvey(
        source=sensor.source if sensor.rails else None,
        rails=tuple(rail.label for rail in sensor.rails),
        total=None if sensor.total is None else str(sensor.total.scope),
        note=detection.note,
        attempts=attempts,
    )
    sensor.close()
    return found


def _finding(attempt: Attempt) -> SensorFinding:
    fix = f" ({attempt.fix})" if attempt.fix else ""
    return SensorFinding(name=attempt.source, is_usable=attempt.ok, note=f"{attempt.reason or 'measures'}{fix}")
