"""Writes what a sensor says to a file that the replay sensor reads: a bug report, a test, a demo without hardware."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from edgeprec.devices.sensor import Rail, Sample, Sensor, Total
from edgeprec.devices.trace_file import header_line, sample_line
from edgeprec.errors import DeviceError

__all__ = ["RecordingSensor", "TraceWriter", "record"]


class TraceWriter:
    """A trace being written, line by line; what was written is whole even when the process is killed.

    Raises:
        DeviceError: the file exists already or cannot be created.
    """

    def __init__(self, path: Path, sensor: Sensor) -> None:
        try:
            self._file: TextIO = path.open("x", encoding="utf-8", buffering=1)
        except OSError as error:
            raise DeviceError(f"the trace {path} cannot be created ({error.strerror}): choose another name") from error
        self._start_ns: int | None = None
        self._file.write(header_line(sensor) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, sample: Sample) -> None:
        """Append a sample; the first one is time zero."""
        if self._start_ns is None:
            self._start_ns = sample.time_ns
        self._file.write(sample_line(sample, start_ns=self._start_ns) + "\n")

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        self._file.close()


class RecordingSensor:
    """A sensor that passes another one's samples on and writes each of them to a trace."""

    def __init__(self, sensor: Sensor, path: Path) -> None:
        self._sensor = sensor
        self._writer = TraceWriter(path, sensor)

    @property
    def source(self) -> str:
        """Return the source of the sensor within."""
        return self._sensor.source

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Return the rails of the sensor within."""
        return self._sensor.rails

    @property
    def total(self) -> Total | None:
        """Return the total of the sensor within."""
        return self._sensor.total

    @property
    def total_note(self) -> str | None:
        """Return the note of the sensor within."""
        return self._sensor.total_note

    @property
    def period_ms(self) -> float:
        """Return the period of the sensor within."""
        return self._sensor.period_ms

    @property
    def lag_ms(self) -> float | None:
        """Return the lag of the sensor within."""
        return self._sensor.lag_ms

    def read(self) -> Sample:
        """Read the sensor within and write the sample down.

        Raises:
            DeviceError: nothing can be read any more.
        """
        sample = self._sensor.read()
        self._writer.write(sample)
        return sample

    def close(self) -> None:
        """Close the trace and the sensor within."""
        self._writer.close()
        self._sensor.close()


def record(
    sensor: Sensor,
    path: Path,
    *,
    seconds: float,
    period_ms: float | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Write samples at a steady period for some seconds and return how many; a sensor that ends early ends the trace.

    Raises:
        DeviceError: the file cannot be created, or the sensor gave no sample at all.
    """
    period_ns = round((sensor.period_ms if period_ms is None else period_ms) * 1e6)
    start_ns = clock()
    count = 0
    with TraceWriter(path, sensor) as writer:
        while (due_ns := start_ns + count * period_ns) <= start_ns + seconds * 1e9:
            wait(max(0, due_ns - clock()) / 1e9)
            try:
                writer.write(sensor.read())
            except DeviceError:
                if count == 0:
                    raise
                break
            count += 1
    return count
