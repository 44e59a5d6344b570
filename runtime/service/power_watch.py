"""The power now, for metrics and chunks: read beside the event loop, because a sensor may take its time or hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from edgeprec.devices.meter import Meter

__all__ = ["PowerWatch"]

_PERIOD_S = 0.5
_WANTED_S = 30.0  # sampling goes on so long after somebody asked


class PowerWatch:
    """Reads a meter twice a second while somebody wants to know; ``meter`` None = nothing is measured.

    ``watts`` is the last value, None while it is not known.
    """

    def __init__(self, meter: Meter | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.watts: float | None = None
        self._meter = meter
        self._clock = clock
        self._asked_s = clock()
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> float | None:
        """Return the last value and keep on reading for a while."""
        self._asked_s = self._clock()
        if self._meter is not None and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._watch(self._meter))
        return self.watts

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self, meter: Meter) -> None:
        await asyncio.to_thread(meter.__enter__)
        try:
            while self._clock() - self._asked_s < _WANTED_S:
                milliwatts = await asyncio.to_thread(meter.latest_total_mw)
                self.watts = None if milliwatts is None else milliwatts * 1e-3
                await asyncio.sleep(_PERIOD_S)
        finally:
            self.watts = None
            await asyncio.to_thread(meter.__exit__, None, None, None)
