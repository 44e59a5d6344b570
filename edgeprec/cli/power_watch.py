"""Readings of power one after the other, until Ctrl-C, the end of the time, or the end of the sensor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeprec.cli.interrupt import calling_on_interrupt
from edgeprec.cli.power_reading import PowerProbe, PowerReading
from edgeprec.devices.sensor import Sensor
from edgeprec.errors import DeviceError

__all__ = ["Show", "read_once", "watch"]

Show = Callable[[PowerReading], None]
_SLICE_S = 0.05  # how long Ctrl-C may go unnoticed


@dataclass(slots=True)
class Pause:
    """Waits between readings. ``recorded`` is read at its own period meanwhile, so that its trace has no gaps."""

    interval_s: float
    recorded: Sensor | None = None
    sleep: Callable[[float], object] = time.sleep
    clock_s: Callable[[], float] = time.monotonic
    is_over: bool = False

    def end(self) -> None:
        """End this wait and every later one."""
        self.is_over = True

    def wait(self, until_s: float) -> None:
        """Wait until a time of the clock, or until ``end`` is called."""
        period_s = _SLICE_S if self.recorded is None else self.recorded.period_ms / 1e3
        while not self.is_over and (left_s := until_s - self.clock_s()) > 0:
            self.sleep(min(left_s, period_s))
            if self.recorded is not None and until_s - self.clock_s() > 0:
                self.recorded.read()


def read_once(probe: PowerProbe, pause: Pause) -> PowerReading:
    """Return one reading; counters and recordings take an interval.

    Raises:
        DeviceError: nothing can be read any more.
    """
    if not probe.needs_two_readings and pause.recorded is None:
        return probe.read()
    probe.read()
    with calling_on_interrupt(pause.end):
        pause.wait(pause.clock_s() + pause.interval_s)
    return probe.read()


def watch(probe: PowerProbe, show: Show, pause: Pause, *, seconds: float | None = None) -> None:
    """Show a reading every interval, counters from their second one on. When the sensor ends, one more says why.

    Raises:
        DeviceError: nothing can be read any more.
    """
    end_s = None if seconds is None else pause.clock_s() + seconds
    with calling_on_interrupt(pause.end):
        try:
            if probe.needs_two_readings:
                probe.read()
                pause.wait(pause.clock_s() + pause.interval_s)
            due_s = pause.clock_s()
            while not pause.is_over:
                show(probe.read())
                due_s = max(due_s + pause.interval_s, pause.clock_s())
                if end_s is not None and due_s > end_s:
                    return
                pause.wait(due_s)
        except DeviceError as error:
            show(probe.unread(f"the sensor ended: {error}"))
            raise
