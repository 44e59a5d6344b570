"""Keeps the measured power under a budget by biasing gears and draft cap, and by pausing when that is not enough.

The sensor trails the truth like a first-order filter of time constant ``lag_ns``. After every change of bias the
governor therefore fits the new power P to the samples since, y(t) = P (1 - d) + y0 d with d = exp(-(t - t0) / lag),
and acts only once the fit stands: it never chases a reading that is still on its way.

Bias is a level, 0 (none) to ``levels``, remembered with the power it led to. Over the budget the level rises, by two
when far over. It falls again only when the remembered power of the lower level, corrected by how much the present
level has drifted since, fits the budget; so it does not swing between a level that fits and one that does not. At the
last level pauses take over: a share of time in which nothing runs, from a line through what was measured at two
shares (power falls from full to idle as the share grows). Between ``RELEASE`` and ``OVER`` times the budget nothing
changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp

from edgeprec.errors import ConfigError

__all__ = ["Governor", "PowerBias"]

OVER = 1.01
TARGET = 0.98
RELEASE = 0.95
FAR_OVER = 1.25
_LARGEST_PAUSE = 0.9
_LEAST_WEIGHT = 1.5  # of the fit, before it is trusted: two to three samples after the lag
_FULL_WEIGHT = 24.0  # beyond it older samples fade


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBias:
    """What the controller is asked for: a strength from 0 (nothing) to 1, and the share of time to pause."""

    strength: float = 0.0
    pause_share: float = 0.0

    def pause_ns(self, busy_ns: int) -> int:
        """Return how long to pause after ``busy_ns`` of work."""
        return round(busy_ns * self.pause_share / (1.0 - self.pause_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Least squares for the power behind a lagging sensor since ``start_ns``."""

    start_ns: int
    start_mw: float
    product: float = 0.0
    weight: float = 0.0

    def updated(self, power_mw: float, time_ns: int, lag_ns: int) -> _Fit:
        left = exp(-(time_ns - self.start_ns) / lag_ns) if lag_ns else 0.0
        keep = 1.0 if self.weight < _FULL_WEIGHT else 1.0 - 1.0 / _FULL_WEIGHT
        return replace(
            self,
            product=keep * self.product + (1.0 - left) * (power_mw - self.start_mw * left),
            weight=keep * self.weight + (1.0 - left) ** 2,
        )

    @property
    def power_mw(self) -> float | None:
        """Return the power, None while too little is known."""
        return self.product / self.weight if self.weight >= _LEAST_WEIGHT else None

    def expected_mw(self, time_ns: int, lag_ns: int) -> float:
        """Return what the sensor shows at ``time_ns``."""
        left = exp(-(time_ns - self.start_ns) / lag_ns) if lag_ns else 0.0
        power = self.start_mw if not self.weight else self.product / self.weight
        return power * (1.0 - left) + self.start_mw * left


@dataclass(frozen=True, slots=True, kw_only=True)
class Governor:
    """The governor's whole state, as a value: ``observed`` returns the next one."""

    budget_mw: float
    lag_ns: int = 300_000_000
    levels: int = 3
    level: int = 0
    pause_share: float = 0.0
    level_mw: tuple[tuple[int, float], ...] = ()  # power each level led to, without pauses
    last_pause: tuple[float, float] | None = None  # share and power before the present share
    fit: _Fit | None = None

    def __post_init__(self) -> None:
        if self.budget_mw <= 0.0 or self.lag_ns < 0 or self.levels < 1:
            raise ConfigError(
                f"power governor: budget is {self.budget_mw} mW, lag {self.lag_ns} ns and levels {self.levels}, "
                "expected a budget above 0, a lag of 0 or more and a level or more"
            )

    @property
    def bias(self) -> PowerBias:
        """Return what to ask of the controller now."""
        return PowerBias(strength=self.level / self.levels, pause_share=self.pause_share)

    def observed(self, power_mw: float, *, time_ns: int) -> Governor:
        """Return the governor after one reading of the total."""
        if self.fit is None:
            return replace(self, fit=_Fit(start_ns=time_ns, start_mw=power_mw))
        fit = self.fit.updated(power_mw, time_ns, self.lag_ns)
        settled = replace(self, fit=fit)
        power = fit.power_mw
        if power is None:
            return settled
        if power > OVER * self.budget_mw:
            return settled._remembered(power)._reduced(power, time_ns)
        if power < RELEASE * self.budget_mw and (self.level or self.pause_share):
            return settled._remembered(power)._released(power, time_ns)
        return settled

    def _reduced(self, power_mw: float, time_ns: int) -> Governor:
        if self.level < self.levels and not self.pause_share:
            step = 2 if power_mw > FAR_OVER * self.budget_mw else 1
            return self._changed(time_ns, level=min(self.level + step, self.levels))
        return self._paused(power_mw, time_ns)

    def _released(self, power_mw: float, time_ns: int) -> Governor:
        if self.pause_share:
            return self._paused(power_mw, time_ns)
        lower = self._predicted_mw(self.level - 1)
        if lower is not None and lower > TARGET * self.budget_mw:
            return self
        return self._changed(time_ns, level=self.level - 1)

    def _paused(self, power_mw: float, time_ns: int) -> Governor:
        """Set the share of pauses at which the line through the last two shares meets the target."""
        target = TARGET * self.budget_mw
        slope = -power_mw / max(1.0 - self.pause_share, 1.0 - _LARGEST_PAUSE)  # as if idling took nothing
        if self.last_pause is not None and abs(self.pause_share - self.last_pause[0]) > 0.02:
            slope = min((power_mw - self.last_pause[1]) / (self.pause_share - self.last_pause[0]), 0.25 * slope)
        share = self.pause_share + (target - power_mw) / slope
        share = min(max(share, 0.0), _LARGEST_PAUSE)
        if abs(share - self.pause_share) < 0.005:
            return self
        return replace(
            self._changed(time_ns, level=self.level), pause_share=share, last_pause=(self.pause_share, power_mw)
        )

    def _predicted_mw(self, level: int) -> float | None:
        known = dict(self.level_mw)
        return known.get(level)

    def _remembered(self, power_mw: float) -> Governor:
        """Note the present level's power, and shift the other levels' by as much as it has drifted."""
        if self.pause_share:
            return self
        known = dict(self.level_mw)
        drift = power_mw - known.get(self.level, power_mw)
        shifted = {level: mw + drift for level, mw in known.items()} | {self.level: power_mw}
        return replace(self, level_mw=tuple(sorted(shifted.items())))

    def _changed(self, time_ns: int, *, level: int) -> Governor:
        assert self.fit is not None
        start_mw = self.fit.expected_mw(time_ns, self.lag_ns)
        return replace(self, level=level, fit=_Fit(start_ns=time_ns, start_mw=start_mw))
