"""Whether a GPU's energy counter and its integrated power tell the same story: measured side by side, never mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeprec.devices.meter import Meter
from edgeprec.devices.reading import EnergyReading

__all__ = ["CounterCheck", "check_counter", "compare_readings"]

_TOLERATED = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterCheck:
    """The same stretch of time by the counter and by integrated power; ``difference`` is relative to the integral."""

    counter: EnergyReading | None
    integral: EnergyReading | None
    difference: float | None
    warning: str | None


def compare_readings(
    counter: EnergyReading | None,
    integral: EnergyReading | None,
    *,
    counter_note: str | None = None,
    integral_note: str | None = None,
) -> CounterCheck:
    """Compare two readings of the same stretch; more than 20 % apart is a warning, a missing one is too."""
    if counter is None or integral is None:
        reason = counter_note if counter is None else integral_note
        refusal = f"the energy counter and the integrated power cannot be compared: {reason}"
        return CounterCheck(counter=counter, integral=integral, difference=None, warning=refusal)
    difference = (counter.watts - integral.watts) / integral.watts if integral.watts else None
    warning = None
    if difference is None or abs(difference) > _TOLERATED:
        warning = (
            f"the energy counter says {counter.watts:.1f} W and the integrated power {integral.watts:.1f} W: "
            f"one of them is wrong on this GPU, compare joules of one source only"
        )
    return CounterCheck(counter=counter, integral=integral, difference=difference, warning=warning)


def check_counter(counter: Meter, power: Meter, work: Callable[[], object]) -> CounterCheck:
    """Do some work inside a window of each meter and compare the two readings."""
    with counter.window("counter") as counter_window, power.window("power") as power_window:
        work()
    return compare_readings(
        counter_window.reading,
        power_window.reading,
        counter_note=counter_window.note,
        integral_note=power_window.note,
    )
