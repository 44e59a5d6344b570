"""A sensor that follows a script and a clock that moves only when told to: for tests of the meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeprec.devices.meter import Meter
from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Total
from edgeprec.devices.window import Window
from edgeprec.errors import DeviceError

MS = 1_000_000
S = 1_000_000_000

Script = Callable[[int], Mapping[str, float | str | None]]


class FakeClock:
    """Monotonic nanoseconds that stand still until ``advance``."""

    def __init__(self, now_ns: int = 1_000 * S) -> None:
        self.start_ns = now_ns
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        """Let time pass."""
        self.now_ns += ns


class FakeSensor:
    """Rails that answer ``script(ns since the start)``; a text instead of a number is the reason for None."""

    source = "fake"

    def __init__(
        self,
        clock: FakeClock,
        script: Script,
        *,
        rails: tuple[Rail, ...] = (Rail(id="r1", label="VDD_IN"),),
        total: Total | None = None,
        total_note: str | None = None,
        period_ms: float = 50.0,
        lag_ms: float | None = None,
        dies_at_ns: int | None = None,
    ) -> None:
        self.clock = clock
        self.script = script
        self.rails = rails
        self.total = total
        self.total_note = total_note
        self.period_ms = period_ms
        self.lag_ms = lag_ms
        self.dies_at_ns = dies_at_ns
        self.reads = 0
        self.closed = 0

    def read(self) -> Sample:
        """Return the scripted values of this moment."""
        elapsed_ns = self.clock() - self.clock.start_ns
        if self.dies_at_ns is not None and elapsed_ns >= self.dies_at_ns:
            raise DeviceError("the bus went away: check the cable")
        self.reads += 1
        answers = self.script(elapsed_ns)
        values = {k: v if isinstance(v, int | float) else None for k, v in answers.items()}
        reasons = {k: v for k, v in answers.items() if isinstance(v, str)}
        return Sample(time_ns=self.clock(), values=values, reasons=reasons)

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


class ManualSampler:
    """Stands in for the thread; the test drives the sampling."""

    def __init__(self, sample: Callable[[], bool], period_ns: int) -> None:
        self.sample = sample
        self.period_ns = period_ns
        self.is_running = False

    def start(self) -> None:
        """Begin."""
        self.is_running = True

    def stop(self) -> None:
        """End."""
        self.is_running = False


class Bench:
    """A meter over a fake sensor, with ``run`` to let time pass while it is sampled as its thread would."""

    def __init__(self, script: Script, *, period_ms: float | None = None, **sensor: object) -> None:
        self.clock = FakeClock()
        rails = sensor.get("rails", (Rail(id="r1", label="VDD_IN"),))
        total = Total(rail_ids=tuple(r.id for r in rails), scope=Scope.MODULE, evidence="test")
        self.sensor = FakeSensor(self.clock, script, **{"total": total, **sensor})
        self.samplers: list[ManualSampler] = []
        self.skipped: Callable[[int], bool] = lambda _: False
        self.meter = Meter(
            self.sensor,
            period_ms=period_ms,
            clock=self.clock,
            wait=lambda seconds: self.run(seconds),
            sampler=self.sampler,
            cost_clock=self.clock,
        )

    def sampler(self, sample: Callable[[], bool], period_ns: int) -> ManualSampler:
        self.samplers.append(ManualSampler(sample, period_ns))
        return self.samplers[-1]

    def run(self, seconds: float) -> None:
        """Let time pass; the sampling calls for which ``skipped(ns since the start)`` holds are lost."""
        end_ns = self.clock.now_ns + round(seconds * S)
        period_ns = round(self.meter.period_ms * MS)
        while self.clock.now_ns + period_ns <= end_ns:
            self.clock.advance(period_ns)
            if self.skipped(self.clock.now_ns - self.clock.start_ns):
                continue
            for sampler in [s for s in self.samplers if s.is_running]:
                sampler.sample()
        self.clock.now_ns = end_ns


def counter_rail(rail_id: str = "gpu0", label: str = "NVIDIA H200", step_ms: float | None = 100.0) -> Rail:
    """Return a rail that counts energy."""
    return Rail(id=rail_id, label=label, quantity=Quantity.ENERGY, step_ms=step_ms)


def measure(bench: Bench, seconds: float) -> Window:
    """Run one window of so many seconds."""
    with bench.meter.window("work") as window:
        bench.run(seconds)
    return window


def constant(**values_mw: float | str) -> Script:
    """Return a script that always answers the same."""
    return lambda _: values_mw


def counting(power_w: float, *, step_ms: int = 100, rail: str = "gpu0", phase_ms: int = 37) -> Script:
    """Return the script of a counter that moves every ``step_ms``."""
    return lambda ns: {rail: 1e9 + (ns + phase_ms * MS) // (step_ms * MS) * power_w * step_ms}
