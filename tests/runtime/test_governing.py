"""A power budget between rounds: what is read when, what follows from it, and how long nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from edgeprec.gears import Gear
from edgeprec.governor import Governor, PowerBias
from edgeprec.runtime.governing import PowerGuard
from edgeprec.runtime.reply import RoundRecord

MS = 1_000_000


def a_round(draft_ns: int = 4 * MS, verify_ns: int = 6 * MS) -> RoundRecord:
    """Return a round of which only its times matter."""
    return RoundRecord(
        round=1,
        position=0,
        drafted=(),
        draft_entropy_bits=(),
        accepted=0,
        emitted=1,
        verified_rows=1,
        draft_cap=0,
        stop_reason="none",
        smoothed_entropy_bits=None,
        gear=Gear.HIGH,
        draft_plan=(),
        draft_ns=draft_ns,
        verify_ns=verify_ns,
        start_ns=0,
    )


@dataclass
class Bench:
    """A machine that draws ``power_mw`` whatever is done, and a clock that rounds and pauses move."""

    power_mw: float | None = 20_000.0
    now_ns: int = 0
    reads: int = 0
    waits_s: list[float] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def read_mw(self) -> float | None:
        """Return the power and count the call."""
        self.reads += 1
        return self.power_mw

    def guard(self, **changes: Any) -> PowerGuard:
        """Return a guard with a budget of 10 W."""
        parts: dict[str, Any] = {
            "governor": Governor(budget_mw=10_000.0, lag_ns=0),
            "read_mw": self.read_mw,
            "clock": lambda: self.now_ns,
            "wait": self.waits_s.append,
        }
        return PowerGuard(**parts | changes)

    def rounds(self, guard: PowerGuard, count: int) -> None:
        """Run rounds of 10 ms."""
        for _ in range(count):
            self.now_ns += 10 * MS
            guard.after_round(a_round(), mark=self.marks.append)


def test_without_a_budget_nothing_is_read_or_paused() -> None:
    """The default guard has no bias and touches nothing."""
    bench = Bench()
    guard = bench.guard(governor=None)
    bench.rounds(guard, 5)
    assert (guard.bias, bench.reads, bench.waits_s, bench.marks) == (PowerBias(), 0, [], [])


def test_power_over_the_budget_biases_then_pauses() -> None:
    """First gears and cap give way; at the last level the pauses begin, in phase ``idle``."""
    bench = Bench()
    guard = bench.guard()
    bench.rounds(guard, 2)
    assert guard.bias.strength == 1.0
    assert bench.waits_s == []
    bench.rounds(guard, 40)
    assert guard.bias.pause_share > 0.0
    assert set(bench.marks) == {"idle"}
    assert guard.paused_ns == pytest.approx(sum(bench.waits_s) * 1e9)


def test_pause_is_in_proportion_to_the_work() -> None:
    """A share of 0.5 pauses as long as the round took."""
    bench = Bench(power_mw=None)
    governor = Governor(budget_mw=10_000.0, level=3, pause_share=0.5)
    guard = bench.guard(governor=governor)
    guard.after_round(a_round(3 * MS, 5 * MS), mark=bench.marks.append)
    assert (bench.waits_s, guard.paused_ns, bench.marks) == ([pytest.approx(8e-3)], 8 * MS, ["idle"])


def test_power_below_the_budget_changes_nothing() -> None:
    """A budget that is met costs nothing."""
    bench = Bench(power_mw=9_000.0)
    guard = bench.guard()
    bench.rounds(guard, 50)
    assert (guard.bias, bench.waits_s) == (PowerBias(), [])


def test_unknown_power_leaves_the_bias() -> None:
    """While the sensor says nothing, what was decided stays."""
    bench = Bench()
    guard = bench.guard()
    bench.rounds(guard, 10)
    bias = guard.bias
    bench.power_mw = None
    bench.rounds(guard, 10)
    assert guard.bias == bias


@pytest.mark.parametrize(("period_ms", "reads"), [(0, 20), (10, 20), (50, 4), (1000, 1)])
def test_a_value_is_read_once_per_period(period_ms: int, reads: int) -> None:
    """Rounds are faster than sensors: the same value twice is not two measurements."""
    bench = Bench(power_mw=9_000.0)
    bench.rounds(bench.guard(period_ns=period_ms * MS), 20)
    assert bench.reads == reads


def test_an_unknown_value_is_asked_for_again() -> None:
    """Before the first sample there is nothing to wait a period for."""
    bench = Bench(power_mw=None)
    bench.rounds(bench.guard(period_ns=1000 * MS), 5)
    assert bench.reads == 5
