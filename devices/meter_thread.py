"""A thread that calls a function at a steady period until it is stopped or the function says that it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Sampler", "SamplingThread", "next_deadline_ns"]


class Sampler(Protocol):
    """Something that keeps calling a sampling function between ``start`` and ``stop``."""

    def start(self) -> None:
        """Begin to sample."""
        ...

    def stop(self) -> None:
        """Stop, and return when the last call is over."""
        ...


def next_deadline_ns(deadline_ns: int, now_ns: int, period_ns: int) -> int:
    """Return the next moment on the grid of periods that is still to come: being late once does not bunch up calls."""
    missed = max(0, (now_ns - deadline_ns) // period_ns)
    return deadline_ns + (missed + 1) * period_ns


class SamplingThread:
    """Call ``sample`` every ``period_ns`` in a daemon thread, until it returns False or ``stop`` is called."""

    def __init__(self, sample: Callable[[], bool], period_ns: int) -> None:
        self._sample = sample
        self._period_ns = period_ns
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeprec-meter", daemon=True)

    def start(self) -> None:
        """Begin to sample, the first time one period from now."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when the last call is over."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        deadline_ns = time.monotonic_ns() + self._period_ns
        while not self._stopped.wait(max(0, deadline_ns - time.monotonic_ns()) / 1e9):
            if not self._sample():
                return
            deadline_ns = next_deadline_ns(deadline_ns, time.monotonic_ns(), self._period_ns)
