"""The sensor of a machine without one: it measures nothing and says why."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeprec.devices.sensor import Rail, Sample

__all__ = ["NullSensor"]

_PERIOD_MS = 1000.0


class NullSensor:
    """No rails, no total; ``reason`` stands wherever a number would."""

    source = "none"
    total = None
    period_ms = _PERIOD_MS
    lag_ms = None

    def __init__(self, reason: str, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.rails: tuple[Rail, ...] = ()
        self.total_note = reason
        self._clock = clock

    def read(self) -> Sample:
        """Return a sample without values."""
        return Sample(time_ns=self._clock(), values={})

    def close(self) -> None:
        """Do nothing."""
