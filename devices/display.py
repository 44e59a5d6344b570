"""Numbers of power and energy as people read them, with their uncertainty; what was not measured is a dash."""

from __future__ import annotations

from edgeprec.devices.reading import EnergyReading

__all__ = ["describe_power", "describe_reading"]

_NOT_MEASURED = "-"


def describe_power(power_mw: float | None, step_mw: float | None = None) -> str:
    """Return watts with the sensor's step as uncertainty; a figure within one step of zero reads as zero."""
    if power_mw is None:
        return _NOT_MEASURED
    if step_mw is None or step_mw <= 0:
        return f"{power_mw / 1e3:.2f} W"
    shown_mw = 0.0 if abs(power_mw) <= step_mw else power_mw
    digits = 1 if step_mw >= 100 else 2
    amount = "0" if shown_mw == 0 else f"{shown_mw / 1e3:.{digits}f}"
    return f"{amount} ± {step_mw / 1e3:.{digits}f} W"


def describe_reading(reading: EnergyReading | None, note: str | None = None) -> str:
    """Return a reading in one line, or why there is none: ``12.3 ± 0.4 J (4.1 W, VDD_IN, 98 % seen)``."""
    if reading is None:
        return f"not measured: {note}" if note else "not measured"
    parts = [f"{reading.watts:.1f} W", " + ".join(reading.rails)]
    if not reading.is_total:
        parts.append("not the total")
    if reading.is_shared:
        parts.append("shared")
    if reading.coverage < 0.995:
        parts.append(f"{100 * reading.coverage:.0f} % seen")
    return f"{reading.joules:.1f} ± {reading.plus_minus_joules:.1f} J ({', '.join(parts)})"
