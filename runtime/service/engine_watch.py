"""Whether the engine answers: while it works it moves on, while it rests a probe of one row comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from edgeprec.errors import EdgePrecError
from edgeprec.runtime.async_session import AsyncSession
from edgeprec.runtime.service.notify import Notifier
from edgeprec.runtime.session import Session

__all__ = ["EngineWatch"]

_log = logging.getLogger(__name__)
_FRESH_S = 5.0
_FEEDS = 3  # signs of life within the time in which the service manager wants one


class EngineWatch:
    """Looks at a session from outside. ``stuck_s`` without any progress counts as dead."""

    def __init__(
        self, session: AsyncSession, *, stuck_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._stuck_s = stuck_s
        self._clock = clock
        self._progress: tuple[int, int] | None = None
        self._alive_s = clock()
        self._looked_s: float | None = None

    async def has_moved(self) -> bool:
        """Whether the engine did something since the last call, or does when it is asked to."""
        progress = self._session.progress
        has_moved = progress != self._progress if self._session.is_running else await self._probe()
        self._progress = progress
        if has_moved:
            self._alive_s = self._clock()
        return has_moved

    async def is_alive(self) -> bool:
        """Whether there was progress lately; looks at most every few seconds."""
        now_s = self._clock()
        if self._looked_s is None or now_s - self._looked_s >= _FRESH_S:
            self._looked_s = now_s
            if await self.has_moved():
                return True
        return self._clock() - self._alive_s < self._stuck_s

    async def feed(self, notifier: Notifier) -> None:
        """Feed the service manager's watchdog for as long as the engine answers; returns when nobody wants that."""
        if notifier.watchdog_s is None:
            return
        while True:
            if await self.has_moved():
                notifier.feed_watchdog()
            await asyncio.sleep(notifier.watchdog_s / _FEEDS)

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(self._stuck_s):
                await self._session.call(Session.probe)
        except TimeoutError:
            return False
        except EdgePrecError as error:
            _log.error("the engine does not answer: %s", error)
            return False
        return True
