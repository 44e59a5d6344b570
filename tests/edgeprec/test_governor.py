"""The power governor on a simulated board: power by level, idle power, a lagging and noisy sensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp

import numpy as np
import pytest

from edgeprec.errors import ConfigError
from edgeprec.governor import Governor, LevelPower, PowerBias, PowerFit

_LEVELS_MW = (15_000.0, 12_500.0, 9_000.0, 7_000.0)
_SEEDS = range(8)


@dataclass(frozen=True)
class _Token:
    power_mw: float
    strength: float
    pause_share: float

    @property
    def bias(self) -> tuple[float, float]:
        return self.strength, self.pause_share


def _simulate(
    budget_mw: float,
    *,
    seed: int,
    tokens: int = 300,
    idle_mw: float = 3_000.0,
    lag_s: float = 0.3,
    noise: float = 0.03,
    background_mw: Callable[[int], float] = lambda token: 0.0,
) -> list[_Token]:
    """Generate tokens of about 60 ms under the governor; the sensor starts from idle."""
    rng = np.random.default_rng(seed)
    governor = Governor(budget_mw=budget_mw)
    time_s, shown_mw, log = 0.0, idle_mw, []
    for token in range(tokens):
        bias = governor.bias
        busy_s = 0.06 * (1.0 + 0.1 * rng.standard_normal())
        whole_s = busy_s + bias.pause_ns(round(busy_s * 1e9)) * 1e-9
        busy_mw = _LEVELS_MW[round(bias.strength * 3)]
        power_mw = (busy_mw * busy_s + idle_mw * (whole_s - busy_s)) / whole_s + background_mw(token)
        shown_mw = power_mw + (shown_mw - power_mw) * exp(-whole_s / lag_s)
        time_s += whole_s
        governor = governor.observed(shown_mw * (1.0 + noise * rng.standard_normal()), time_ns=round(time_s * 1e9))
        log.append(_Token(power_mw, bias.strength, bias.pause_share))
    return log


def _changes(log: list[_Token]) -> int:
    return sum(before.bias != after.bias for before, after in pairwise(log))


@pytest.mark.parametrize("budget_mw", [14_000.0, 12_000.0, 10_000.0, 8_000.0, 7_200.0, 6_000.0, 5_000.0, 4_000.0])
def test_power_is_within_the_budget_after_20_tokens(budget_mw: float) -> None:
    """From the 21st token on the true power stays below 105 % of the budget, at gears or with pauses."""
    for seed in _SEEDS:
        worst = max(token.power_mw for token in _simulate(budget_mw, seed=seed)[20:])
        assert worst <= 1.05 * budget_mw, f"seed {seed}: {worst} mW"


@pytest.mark.parametrize("budget_mw", [14_000.0, 9_500.0, 7_200.0, 5_000.0])
def test_there_is_no_limit_cycle(budget_mw: float) -> None:
    """Once settled the bias stays: at most one late correction in 250 tokens, whatever the noise."""
    for seed in _SEEDS:
        assert _changes(_simulate(budget_mw, seed=seed)[50:]) <= 1


@pytest.mark.parametrize("budget_mw", [6_000.0, 5_000.0, 4_000.0])
@pytest.mark.parametrize("idle_mw", [500.0, 2_000.0, 3_500.0])
def test_pauses_use_what_the_budget_allows(budget_mw: float, idle_mw: float) -> None:
    """Where only pauses help, the power ends within 90 to 105 % of the budget for any idle power below it."""
    for seed in _SEEDS:
        settled = [token.power_mw for token in _simulate(budget_mw, seed=seed, idle_mw=idle_mw)[60:]]
        assert 0.90 * budget_mw <= np.mean(settled) <= 1.05 * budget_mw


@pytest.mark.parametrize("budget_mw", [15_600.0, 30_000.0])
def test_a_generous_budget_biases_nothing(budget_mw: float) -> None:
    """Power below the budget is left alone."""
    for seed in _SEEDS:
        assert {token.bias for token in _simulate(budget_mw, seed=seed)} == {(0.0, 0.0)}


def test_bias_is_released_when_other_load_ends() -> None:
    """When something else on the board stops drawing power, the gears come back up."""
    for seed in _SEEDS:
        log = _simulate(17_000.0, seed=seed, background_mw=lambda token: 6_000.0 if token < 100 else 0.0)
        assert max(token.power_mw for token in log[20:100]) <= 1.05 * 17_000.0
        assert log[99].strength > 0.0
        assert log[-1].bias == (0.0, 0.0)


def test_pauses_are_released_before_gears() -> None:
    """When the load falls, pauses go first and the last level stays as long as the one above does not fit."""
    for seed in _SEEDS:
        log = _simulate(7_600.0, seed=seed, background_mw=lambda token: 2_500.0 if token < 100 else 0.0)
        assert log[99].pause_share > 0.0
        assert log[-1].bias == (1.0, 0.0)


def test_a_sensor_without_lag_works() -> None:
    """A lag of 0 is a sensor that shows the truth at once."""
    governor = Governor(budget_mw=1_000.0, lag_ns=0)
    for token in range(40):
        power = (2_000.0, 1_500.0, 1_200.0, 900.0)[governor.level]
        governor = governor.observed(power, time_ns=token * 10_000_000)
    assert governor.bias == PowerBias(strength=1.0)


def test_same_readings_give_the_same_bias() -> None:
    """The governor is a value: replaying the readings replays the state."""
    readings = [(12_000.0 + 300.0 * (i % 5), i * 50_000_000) for i in range(60)]
    states = []
    for _ in range(2):
        governor = Governor(budget_mw=10_000.0)
        for power, time_ns in readings:
            governor = governor.observed(power, time_ns=time_ns)
        states.append(governor)
    assert states[0] == states[1]


def test_fit_finds_the_power_behind_the_lag() -> None:
    """A step seen through the sensor's lag is known long before the sensor shows it."""
    fit = PowerFit(start_ns=0, start_mw=10_000.0, lag_ns=300_000_000)
    for tick in range(1, 5):
        seconds = 0.05 * tick
        fit = fit.updated(6_000.0 + 4_000.0 * exp(-seconds / 0.3), round(seconds * 1e9))
    assert fit.power_mw == pytest.approx(6_000.0)
    assert fit.expected_mw(10**12) == pytest.approx(6_000.0)
    assert fit.expected_mw(0) == pytest.approx(10_000.0)


def test_doubt_falls_with_samples() -> None:
    """Without a sample all is doubt; each one lessens it."""
    fit = PowerFit(start_ns=0, start_mw=1.0, lag_ns=0)
    doubts = [fit.doubt]
    for tick in range(5):
        fit = fit.updated(1.0, tick)
        doubts.append(fit.doubt)
    assert doubts[0] == 1.0
    assert doubts == sorted(doubts, reverse=True)


def test_remembered_levels_are_averaged() -> None:
    """Meeting a level again refines what is known of it, and narrows the margin."""
    once = LevelPower(100.0, 1.0)
    twice = once.merged(110.0, 3.0)
    assert twice.power_mw == pytest.approx(107.5)
    assert twice.largest_mw / twice.power_mw < once.largest_mw / once.power_mw


@pytest.mark.parametrize(("share", "pause"), [(0.0, 0), (0.5, 1_000), (0.9, 9_000)])
def test_pause_is_a_share_of_the_whole(share: float, pause: int) -> None:
    """Half the time paused means pausing as long as working."""
    assert PowerBias(pause_share=share).pause_ns(1_000) == pause


@pytest.mark.parametrize(
    "settings", [{"budget_mw": 0.0}, {"budget_mw": 1.0, "lag_ns": -1}, {"budget_mw": 1.0, "levels": 0}]
)
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    """A budget is more than nothing."""
    with pytest.raises(ConfigError, match="governor"):
        Governor(**settings)  # type: ignore[arg-type]
