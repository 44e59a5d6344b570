"""Joules of a piece of work: samples a sensor in the background and turns windows of time into readings.

The meter reads the sensor it was given and no other. It does not close it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgeprec.devices.account import Account, Circumstances
from edgeprec.devices.curve import Span
from edgeprec.devices.meter_thread import Sampler, SamplingThread
from edgeprec.devices.power_now import power_now
from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.sample_log import SampleLog
from edgeprec.devices.sensor import Sensor
from edgeprec.devices.window import Window
from edgeprec.errors import ConfigError, DeviceError

__all__ = ["IdleBaseline", "Meter", "Overhead"]

_logger = logging.getLogger(__name__)

_KEPT_SAMPLES = 64  # enough for the power of the moment when no window is open
_MARGIN_PERIODS = 8  # samples before a window that place its first counter step
_IDLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleBaseline:
    """The power of a machine at rest; ``watts`` is None when it could not be measured, and ``note`` says why."""

    watts: float | None
    seconds: float
    power_mode: str | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What measuring costs: the time spent inside the sensor's read, and its share of the sampling period."""

    samples: int
    ns_per_sample: float
    worst_ns: int
    share: float


class Meter:
    """Measures windows of energy with one sensor.

    A background thread reads the sensor every ``period_ms`` while a window is open, or as long as ``with meter:``
    lasts. Both ends of a window are read as well, after ``synchronize``, which waits for the accelerator's queue.
    ``clock`` must be the clock that stamps the sensor's samples.

    Raises:
        ConfigError: the period is not above zero.
    """

    def __init__(
        self,
        sensor: Sensor,
        *,
        period_ms: float | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        synchronize: Callable[[], object] | None = None,
        wait: Callable[[float], object] = time.sleep,
        sampler: Callable[[Callable[[], bool], int], Sampler] = SamplingThread,
        cost_clock: Callable[[], int] = time.perf_counter_ns,
        power_mode: str | None = None,
    ) -> None:
        if period_ms is not None and not period_ms > 0:
            raise ConfigError(f"the sampling period is {period_ms!r} ms, expected more than 0: try 50")
        self.sensor = sensor
        self.period_ms = sensor.period_ms if period_ms is None else period_ms
        self.power_mode = power_mode
        self.idle: IdleBaseline | None = None
        self.latest_note: str | None = "nothing was sampled yet"
        self._clock = clock
        self._cost_clock = cost_clock
        self._synchronize = synchronize
        self._wait = wait
        self._sampler_factory = sampler
        self._sampler: Sampler | None = None
        self._users = 0
        self._users_lock = threading.Lock()
        self._log = SampleLog()
        self._log_lock = threading.Lock()  # held while the sensor is read: sensors need not be thread-safe
        self._open: list[Window] = []
        self._ended: tuple[int, str] | None = None
        self._costs = (0, 0, 0)  # samples, sum and maximum of ns

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def ended_note(self) -> str | None:
        """Return why the sensor gives no samples any more, None while it does."""
        return None if self._ended is None else self._ended[1]

    def window(self, name: str) -> Window:
        """Return a window to be used in a ``with`` statement. Windows may nest and overlap."""
        return Window(name, self, self._clock)

    def sample(self) -> bool:
        """Read the sensor once and return whether it may be read again. The background thread calls this."""
        with self._log_lock:
            if self._ended is not None or not self.sensor.rails:
                return False
            before_ns = self._cost_clock()
            try:
                sample = self.sensor.read()
            except (DeviceError, OSError) as error:
                self._ended = (self._clock(), str(error))
                _logger.warning("the power sensor %s ended: %s", self.sensor.source, error)
                return False
            self._count_cost(self._cost_clock() - before_ns)
            self._log.append(sample)
            if not self._open and len(self._log) > 2 * _KEPT_SAMPLES:
                self._log.forget_before(self._log.last(_KEPT_SAMPLES)[0].time_ns)
            return True

    def latest_total_mw(self) -> float | None:
        """Return the power of the total now, None when it is not known; ``latest_note`` then says why."""
        with self._log_lock:
            samples = self._log.last(_KEPT_SAMPLES)
        power_mw, self.latest_note = power_now(samples, self._circumstances(), self._clock())
        return power_mw

    def measure_idle(self, seconds: float = _IDLE_SECONDS) -> IdleBaseline:
        """Measure the power at rest for some seconds; later readings carry it, and the joules above it."""
        with self.window("idle") as window:
            self._wait(seconds)
        watts = None if window.reading is None else window.reading.watts
        note = window.note
        if watts is not None and seconds < _IDLE_SECONDS:
            note = f"the idle baseline of {seconds:g} s is shorter than {_IDLE_SECONDS:g} s"
        self.idle = IdleBaseline(watts=watts, seconds=seconds, power_mode=self.power_mode, note=note)
        return self.idle

    def overhead(self) -> Overhead | None:
        """Return what one sample costs, None before the first."""
        samples, total_ns, worst_ns = self._costs
        if samples == 0:
            return None
        mean_ns = total_ns / samples
        return Overhead(
            samples=samples, ns_per_sample=mean_ns, worst_ns=worst_ns, share=mean_ns / (self.period_ms * 1e6)
        )

    def open_window(self, window: Window) -> None:
        """Read the sensor and start the clock of a window. Called on entering it."""
        if window.start_ns is not None:
            msg = f"the window {window.name!r} was used already: take a new one from meter.window()"
            raise RuntimeError(msg)
        self._drain_queue()
        with self._log_lock:
            self._open.append(window)
            window.start_ns = self._clock()
        self._start()
        self.sample()
        window.start_ns = self._clock()

    def close_window(self, window: Window) -> None:
        """Stop the clock of a window, read the sensor and settle the readings. Called on leaving it."""
        try:
            self._drain_queue()
        finally:
            self._settle(window)

    def phases_so_far(self, window: Window) -> dict[str, EnergyReading | None]:
        """Return the phases of a window that is still open, from the samples taken until now."""
        end_ns = self._clock()
        if window.start_ns is None or end_ns <= window.start_ns:
            return {}
        span = Span(window.start_ns, end_ns)
        with self._log_lock:
            samples = self._log.between(span.start_ns - self._margin_ns(), end_ns)
        return window.phases(Account(samples, span, self._circumstances()), span)

    def _settle(self, window: Window) -> None:
        window.end_ns = self._clock()
        self.sample()
        self._stop()
        span = window.span()
        margin_ns = self._margin_ns()
        with self._log_lock:
            samples = self._log.between(span.start_ns - margin_ns, self._clock())
            self._open.remove(window)
            starts = [other.start_ns for other in self._open if other.start_ns is not None]
            self._log.forget_before(min([*starts, span.end_ns]) - margin_ns)
        window.settle(Account(samples, span, self._circumstances()), samples)

    def _drain_queue(self) -> None:
        if self._synchronize is not None:
            self._synchronize()

    def _margin_ns(self) -> int:
        return round(_MARGIN_PERIODS * max(self.period_ms, self.sensor.period_ms) * 1e6)

    def _count_cost(self, cost_ns: int) -> None:
        samples, total_ns, worst_ns = self._costs
        self._costs = (samples + 1, total_ns + cost_ns, max(worst_ns, cost_ns))

    def _circumstances(self) -> Circumstances:
        sensor, idle = self.sensor, self.idle
        is_same_mode = idle is not None and idle.power_mode == self.power_mode
        idle_note = None
        if idle is not None and not is_same_mode:
            idle_note = f"the idle baseline was taken in the power mode {idle.power_mode}, this is {self.power_mode}"
        ended_ns, ended_note = self._ended or (None, None)
        return Circumstances(
            source=sensor.source,
            rails=sensor.rails,
            total=sensor.total,
            total_note=sensor.total_note,
            period_ms=self.period_ms,
            sensor_period_ms=sensor.period_ms,
            lag_ms=sensor.lag_ms,
            power_mode=self.power_mode,
            idle_watts=idle.watts if idle is not None and is_same_mode else None,
            idle_note=idle_note,
            ended_ns=ended_ns,
            ended_note=ended_note,
        )

    def _start(self) -> None:
        with self._users_lock:
            self._users += 1
            if self._users == 1 and self.sensor.rails and self._ended is None:
                self._sampler = self._sampler_factory(self.sample, round(self.period_ms * 1e6))
                self._sampler.start()

    def _stop(self) -> None:
        with self._users_lock:
            self._users -= 1
            sampler = None
            if self._users == 0:
                sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
