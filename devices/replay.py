"""A recorded trace that reads as the sensor did: at the recording's pace, or one sample a read on its own clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from edgeprec.devices.rail_plans import label_total
from edgeprec.devices.sensor import Sample
from edgeprec.devices.tegrastats_log import Plan, read_tegrastats
from edgeprec.devices.trace_file import TraceHeader, parse_header, parse_sample
from edgeprec.errors import DeviceError

__all__ = ["ReplaySensor", "SteppedReplaySensor", "load_trace"]

_log = logging.getLogger(__name__)

_PERIODS_AFTER_THE_END = 2


class ReplaySensor:
    """Replays in real time: the first read is the start of the trace, each read gives the newest sample due by then.

    A sample that was read before comes again with its old stamp, and a pause in the recording is a pause here.
    """

    source = "replay"

    def __init__(self, header: TraceHeader, samples: Sequence[Sample], clock: Callable[[], int]) -> None:
        self.recorded_source = header.source
        self.rails = header.rails
        self.total = header.total
        self.total_note = header.total_note
        self.period_ms = header.period_ms
        self.lag_ms = header.lag_ms
        self._samples = tuple(samples)
        self._clock = clock
        self._offset_ns: int | None = None
        self._next = 0

    @classmethod
    def open(cls, path: Path, *, plan: Plan = label_total, clock: Callable[[], int] = time.monotonic_ns) -> Self:
        """Load a trace written by EdgePrec, or a log of tegrastats whose total ``plan`` tells from the rails' labels.

        Raises:
            DeviceError: the file cannot be read or is neither.
        """
        header, samples = load_trace(path, plan=plan)
        return cls(header, samples, clock)

    @property
    def seconds(self) -> float:
        """Return how long the recording lasts."""
        return (self._samples[-1].time_ns - self._samples[0].time_ns) / 1e9

    def read(self) -> Sample:
        """Return the newest sample that is due.

        Raises:
            DeviceError: the trace has ended.
        """
        now_ns = self._clock()
        if self._offset_ns is None:
            self._offset_ns = now_ns - self._samples[0].time_ns
        due_ns = now_ns - self._offset_ns
        if due_ns > self._samples[-1].time_ns + _PERIODS_AFTER_THE_END * self.period_ms * 1e6:
            raise DeviceError(f"the recorded trace ended after {self.seconds:.1f} s: record a longer one")
        restarts: frozenset[str] = frozenset()
        while self._next < len(self._samples) and self._samples[self._next].time_ns <= due_ns:
            restarts |= self._samples[self._next].restarts
            self._next += 1
        return self._moved(self._samples[self._next - 1], self._offset_ns, restarts)

    def close(self) -> None:
        """Do nothing: the file was read when it was opened."""

    def _moved(self, sample: Sample, offset_ns: int, restarts: frozenset[str]) -> Sample:
        return Sample(
            time_ns=sample.time_ns + offset_ns, values=sample.values, reasons=sample.reasons, restarts=restarts
        )


class SteppedReplaySensor(ReplaySensor):
    """Replays without waiting: each read gives the next sample and moves ``clock`` to its time."""

    def clock(self) -> int:
        """Return the time of the last sample read: give this to the meter."""
        return self._samples[max(0, self._next - 1)].time_ns

    def read(self) -> Sample:
        """Return the next sample.

        Raises:
            DeviceError: the trace has ended.
        """
        if self._next >= len(self._samples):
            raise DeviceError(f"the recorded trace ended after {self.seconds:.1f} s: record a longer one")
        self._next += 1
        return self._samples[self._next - 1]


def load_trace(path: Path, *, plan: Plan = label_total) -> tuple[TraceHeader, list[Sample]]:
    """Read a trace or a tegrastats log. A last line cut off in the middle is left out with a warning.

    Raises:
        DeviceError: the file cannot be read, is neither, or is damaged; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DeviceError(f"the trace {path} cannot be read ({error.strerror}): check the name") from error
    try:
        if not text.lstrip().startswith("{"):
            return read_tegrastats(text.splitlines(), plan=plan)
        return _read_jsonl(text, path)
    except DeviceError as error:
        raise DeviceError(f"{path}: {error}") from error


def _read_jsonl(text: str, path: Path) -> tuple[TraceHeader, list[Sample]]:
    lines = text.strip().split("\n")
    header = parse_header(lines[0])
    samples: list[Sample] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            sample = parse_sample(line, number)
        except DeviceError:
            if number == len(lines) and not text.endswith("\n"):
                _log.warning("%s: line %d is cut off and left out", path, number)
                break
            raise
        if samples and sample.time_ns < samples[-1].time_ns:
            raise DeviceError(f"line {number} of the trace is earlier than the line before it: sort or record anew")
        samples.append(sample)
    if not samples:
        raise DeviceError("the trace holds no sample: record it anew")
    return header, samples
