"""Power and energy in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeprec.devices.display import describe_power, describe_reading
from edgeprec.devices.reading import EnergyReading, Method
from edgeprec.devices.sensor import Scope

READING = EnergyReading(
    joules=12.34,
    source="ina3221",
    rails=("VDD_IN",),
    is_total=True,
    scope=Scope.MODULE,
    method=Method.INTEGRATED_POWER,
    seconds=3.0,
    samples=60,
    period_ms=50.0,
    lag_ms=None,
    coverage=1.0,
    plus_minus_joules=0.42,
)


@pytest.mark.parametrize(
    ("power_mw", "step_mw", "text"),
    [
        (-392.0, 392.0, "0 ± 0.4 W"),  # Thor's gated GPU
        (0.0, 392.0, "0 ± 0.4 W"),
        (-800.0, 392.0, "-0.8 ± 0.4 W"),
        (4784.64, 40.0, "4.78 ± 0.04 W"),
        (4784.64, None, "4.78 W"),
        (0.0, None, "0.00 W"),
        (None, 40.0, "-"),
    ],
)
def test_power_within_a_step_of_zero_reads_as_zero(power_mw: float | None, step_mw: float | None, text: str) -> None:
    """One step below zero is shown as 0 ± one step, a missing figure as a dash and never as 0."""
    assert describe_power(power_mw, step_mw) == text


def test_readings_in_one_line() -> None:
    """Partial, shared and incomplete readings say so; a missing one gives its reason."""
    assert describe_reading(READING) == "12.3 ± 0.4 J (4.1 W, VDD_IN)"
    poor = replace(READING, rails=("gpu0", "gpu1"), is_total=False, is_shared=True, coverage=0.5)
    assert describe_reading(poor) == "12.3 ± 0.4 J (8.2 W, gpu0 + gpu1, not the total, shared, 50 % seen)"
    assert describe_reading(None, "too short") == "not measured: too short"
    assert describe_reading(None) == "not measured"
