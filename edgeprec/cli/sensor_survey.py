"""Which power sensors were tried, which one measures, and the board it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeprec.errors import DeviceError

if TYPE_CHECKING:
    from edgeprec.devices.board import Board
    from edgeprec.devices.detect import Attempt

__all__ = ["SensorFinding", "SensorSurvey", "survey_sensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorFinding:
    """What came of one source; ``note`` is the reason, ``fix`` what to do where the reason does not say it."""

    name: str
    is_usable: bool
    note: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorSurvey:
    """``source`` measures; where nothing does it is None and ``note`` says why. ``total`` is what the total covers."""

    source: str | None
    rails: tuple[str, ...]
    total: str | None
    evidence: str | None
    note: str | None
    attempts: tuple[SensorFinding, ...]


def survey_sensors(wanted: str) -> tuple[SensorSurvey, Board]:
    """Open the sensor that ``--sensor`` would, look at it and its board, close it, and try the machine's others.

    Raises:
        ConfigError: ``wanted`` names no sensor there is.
    """
    from edgeprec.devices.board import read_board
    from edgeprec.devices.detect import detect, survey

    attempts = tuple(_finding(attempt) for attempt in survey())
    try:
        detection = detect(wanted)
    except DeviceError as error:
        failed = SensorSurvey(source=None, rails=(), total=None, evidence=None, note=str(error), attempts=attempts)
        return failed, read_board()
    sensor, total = detection.sensor, detection.sensor.total
    try:
        board = read_board(detection.sysfs)  # a simulated board goes with its sensor
    finally:
        sensor.close()
    tried = {attempt.name for attempt in attempts}
    extra = tuple(_finding(attempt) for attempt in detection.attempts if attempt.source not in tried)
    found = SensorSurvey(
        source=sensor.source if sensor.rails else None,
        rails=tuple(rail.label for rail in sensor.rails),
        total=None if total is None else str(total.scope),
        evidence=None if total is None else total.evidence,
        note=sensor.total_note if total is None or not sensor.rails else None,
        attempts=(*(finding for finding in extra if sensor.rails), *attempts),
    )
    return found, board


def _finding(attempt: Attempt) -> SensorFinding:
    return SensorFinding(name=attempt.source, is_usable=attempt.ok, note=attempt.reason or "measures", fix=attempt.fix)
