"""A power budget at work: the measured total goes in, a bias for the controller and pauses come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edgeprec.devices.meter import Meter
from edgeprec.devices.reading import EnergyReading
from edgeprec.governor import Governor, PowerBias
from edgeprec.runtime.reply import RoundRecord

__all__ = ["PowerGuard", "budget_note", "power_guard"]

_BUDGET_SLACK = 1.05


@dataclass(slots=True)
class PowerGuard:
    """Feeds the governor after every round; without a budget it does nothing.

    ``read_mw`` returns the measured total now, None while it is not known; then the bias stays as it is. It is asked
    once in ``period_ns``, the time in which the sensor has something new to say: a value seen twice is no second
    measurement.
    """

    governor: Governor | None = None
    read_mw: Callable[[], float | None] = lambda: None
    clock: Callable[[], int] = time.monotonic_ns
    wait: Callable[[float], object] = time.sleep
    period_ns: int = 0
    paused_ns: int = 0
    _read_ns: int | None = None

    @property
    def bias(self) -> PowerBias:
        """Return what to ask of the controller."""
        return PowerBias() if self.governor is None else self.governor.bias

    def after_round(self, record: RoundRecord, *, mark: Callable[[str], object]) -> None:
        """Look at the power and pause as long as the budget asks; the pause is phase ``idle``."""
        if self.governor is None:
            return
        self.governor = self._observed(self.governor)
        pause_ns = self.governor.bias.pause_ns(record.draft_ns + record.verify_ns)
        if pause_ns:
            mark("idle")
            self.wait(pause_ns * 1e-9)
            self.paused_ns += pause_ns

    def _observed(self, governor: Governor) -> Governor:
        now_ns = self.clock()
        if self._read_ns is not None and now_ns - self._read_ns < self.period_ns:
            return governor
        power_mw = self.read_mw()
        if power_mw is None:
            return governor
        self._read_ns = now_ns
        return governor.observed(power_mw, time_ns=now_ns)


def power_guard(
    budget_w: float | None, meter: Meter | None, *, clock: Callable[[], int], wait: Callable[[float], object]
) -> PowerGuard:
    """Return the guard of one generation; without a budget it does nothing."""
    if budget_w is None or meter is None:
        return PowerGuard()
    lag_ms = meter.sensor.lag_ms
    governor = Governor(budget_mw=budget_w * 1e3)
    if lag_ms is not None:
        governor = replace(governor, lag_ns=round(lag_ms * 1e6))
    return PowerGuard(
        governor=governor, read_mw=meter.latest_total_mw, clock=clock, wait=wait, period_ns=round(meter.period_ms * 1e6)
    )


def budget_note(budget_w: float | None, reading: EnergyReading | None, *, paused_ns: int) -> Iterator[str]:
    """Say so when the measured power stayed above the budget, whatever was tried."""
    if budget_w is None or reading is None or reading.watts <= _BUDGET_SLACK * budget_w:
        return
    yield (
        f"the power budget of {budget_w:g} W was not held: the mean was {reading.watts:.1f} W with INT4 preferred, "
        f"shorter drafts and {paused_ns * 1e-9:.1f} s of pauses"
    )
