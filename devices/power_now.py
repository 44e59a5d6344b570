"""The power of the total at this moment, from the last few samples: what a power governor asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgeprec.devices.account import Circumstances
from edgeprec.devices.rail_energy import rail_series
from edgeprec.devices.sensor import Quantity, Rail, Sample

__all__ = ["PowerNow", "power_now"]

_STALE_PERIODS = 4


class PowerNow(NamedTuple):
    """Power in mW, or None and why."""

    total_mw: float | None
    note: str | None


def power_now(samples: Sequence[Sample], about: Circumstances, now_ns: int) -> PowerNow:
    """Return the newest power of the whole total; a part of it is never given out as the total."""
    if about.total is None:
        return PowerNow(None, about.total_note or f"no total is known for the rails of {about.source}")
    if about.total.is_partial:
        return PowerNow(None, about.total_note or "a part of the total cannot be measured")
    if about.ended_note is not None:
        return PowerNow(None, f"the sensor ended: {about.ended_note}")
    if not samples:
        return PowerNow(None, "nothing was sampled yet")
    age_ms = (now_ns - samples[-1].time_ns) / 1e6
    if age_ms > _STALE_PERIODS * max(about.period_ms, about.sensor_period_ms):
        return PowerNow(None, f"the last sample is {age_ms / 1e3:.1f} s old")
    total_mw = 0.0
    for rail in about.rails_of_total():
        power_mw = _rail_now_mw(rail, samples, about)
        if power_mw is None:
            reason = samples[-1].reasons.get(rail.id, "its counter has not stepped twice yet")
            return PowerNow(None, f"{rail.label} not measured: {reason}")
        total_mw += power_mw
    return PowerNow(total_mw, None)


def _rail_now_mw(rail: Rail, samples: Sequence[Sample], about: Circumstances) -> float | None:
    if rail.quantity is Quantity.POWER:
        return samples[-1].values.get(rail.id)
    pieces = rail_series(rail, samples, about.timing).curve.pieces
    return pieces[-1].end_mw if pieces else None
