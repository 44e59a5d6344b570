"""Keeps the measured power under a budget by biasing gears and draft cap, and by pausing when that is not enough.

The sensor trails the truth like a first-order filter of time constant ``lag_ns``. After every change of bias the
governor therefore fits the new power P to the samples since, y(t) = P (1 - d) + y0 d with d = exp(-(t - t0) / lag),
and acts once P is over or under by more than the fit's own doubt: far off after two samples, slightly off only after
many. It never chases a reading that is still on its way.

Bias is a level, 0 (none) to ``levels``, remembered with the power it led to. Over the budget the level rises, by more
when far over. It falls again only when the remembered power of the lower level fits the budget, or when the
present level draws plainly less than it did; so it does not swing between a level that fits and one that does not. At
the last level pauses take over: a share of time in which nothing runs, from a line through what was measured at two
shares (power falls from full to idle as the share grows). Between ``RELEASE`` and ``OVER`` times the budget nothing
changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, exp, sqrt

from edgeprec.errors import ConfigError

__all__ = ["Governor", "LevelPower", "PowerBias", "PowerFit"]

OVER = 1.01
TARGET = 0.98
RELEASE = 0.95
_NOISE = 0.06  # of a single sample, with some margin
_LARGEST_DOUBT = 0.10  # in a remembered level
_CUT_PER_LEVEL = 0.2  # of the power, while nothing is known of the levels
_LARGEST_PAUSE = 0.9
_GUESSED_SLOPE = 0.75
_LEAST_SLOPE = 0.25  # of the slope towards no power at all: an idle machine takes at most three quarters of a busy one
_CHANGE = 0.08  # of a level's power, from which on it counts as another
_SETTLED_WEIGHT = 8.0
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
class PowerFit:
    """Least squares for the power behind a lagging sensor since ``start_ns``, when it showed ``start_mw``."""

    start_ns: int
    start_mw: float
    lag_ns: int
    product: float = 0.0
    weight: float = 0.0  # samples' worth of what the fit knows

    def updated(self, power_mw: float, time_ns: int) -> PowerFit:
        """Return the fit with one more sample."""
        left = self._left(time_ns)
        keep = 1.0 if self.weight < _FULL_WEIGHT else 1.0 - 1.0 / _FULL_WEIGHT
        return replace(
            self,
            product=keep * self.product + (1.0 - left) * (power_mw - self.start_mw * left),
            weight=keep * self.weight + (1.0 - left) ** 2,
        )

    @property
    def power_mw(self) -> float:
        """Return the power the sensor tends to."""
        return self.product / self.weight if self.weight else self.start_mw

    @property
    def doubt(self) -> float:
        """Return how far off the power may be, as a share of it."""
        return _NOISE / sqrt(self.weight) if self.weight else 1.0

    def expected_mw(self, time_ns: int) -> float:
        """Return what the sensor shows at ``time_ns``."""
        left = self._left(time_ns)
        return self.power_mw * (1.0 - left) + self.start_mw * left

    def _left(self, time_ns: int) -> float:
        return exp(-max(time_ns - self.start_ns, 0) / self.lag_ns) if self.lag_ns else 0.0


@dataclass(frozen=True, slots=True)
class LevelPower:
    """What a level was measured to draw, and how many samples that rests on."""

    power_mw: float
    weight: float

    def merged(self, power_mw: float, weight: float) -> LevelPower:
        """Return the mean with another measurement of the level."""
        total = min(self.weight + weight, _FULL_WEIGHT)
        share = weight / (self.weight + weight)
        return LevelPower(self.power_mw + share * (power_mw - self.power_mw), total)

    @property
    def largest_mw(self) -> float:
        """Return what it may draw, the doubt included."""
        return self.power_mw * (1.0 + min(_NOISE / sqrt(self.weight), _LARGEST_DOUBT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Governor:
    """The governor's whole state, as a value: ``observed`` returns the next one."""

    budget_mw: float
    lag_ns: int = 300_000_000
    levels: int = 3
    level: int = 0
    pause_share: float = 0.0
    level_powers: tuple[tuple[int, LevelPower], ...] = ()  # without pauses, by level
    last_pause: tuple[float, float] | None = None  # share and power before the present share
    shown_mw: float = 0.0
    fit: PowerFit | None = None

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
            return replace(self, fit=PowerFit(start_ns=time_ns, start_mw=power_mw, lag_ns=self.lag_ns))
        fit = self.fit.updated(power_mw, time_ns)
        current = replace(self, fit=fit, shown_mw=power_mw)
        if fit.weight >= _SETTLED_WEIGHT and self.level not in dict(self.level_powers):
            current = current._remembering()
        if fit.power_mw > (OVER + fit.doubt) * self.budget_mw:
            return current._remembering()._reduced(fit.power_mw, time_ns)
        if fit.power_mw < (RELEASE - fit.doubt) * self.budget_mw and (self.level or self.pause_share):
            return current._released(fit.power_mw, time_ns)
        return current

    def _reduced(self, power_mw: float, time_ns: int) -> Governor:
        if self.level == self.levels or self.pause_share:
            return self._paused(power_mw, time_ns)
        steps = ceil((1.0 - self.budget_mw / power_mw) / _CUT_PER_LEVEL)
        return self._changed(time_ns, level=min(self.level + steps, self.levels))

    def _released(self, power_mw: float, time_ns: int) -> Governor:
        if self.pause_share:
            return self._paused(power_mw, time_ns)
        current = self._remembering() if self._drift_mw < 0.0 else self
        if current._lower_level_mw(power_mw) > TARGET * self.budget_mw:
            return current
        return current._remembering()._changed(time_ns, level=self.level - 1)

    def _paused(self, power_mw: float, time_ns: int) -> Governor:
        """Set the share of pauses at which the line through the last two shares meets the target."""
        steepest = -power_mw / (1.0 - self.pause_share)  # as if idling took nothing
        slope = _GUESSED_SLOPE * steepest
        if self.last_pause is not None and abs(self.pause_share - self.last_pause[0]) > 0.02:
            measured = (power_mw - self.last_pause[1]) / (self.pause_share - self.last_pause[0])
            slope = min(max(measured, steepest), _LEAST_SLOPE * steepest)
        share = self.pause_share + (TARGET * self.budget_mw - power_mw) / slope
        share = min(max(share, 0.0), _LARGEST_PAUSE)
        changed = self._changed(time_ns, level=self.level)
        return replace(changed, pause_share=share, last_pause=(self.pause_share, power_mw))

    def _lower_level_mw(self, power_mw: float) -> float:
        """Return what the next lower level may draw: as remembered, or interpolated, or as now where none is known."""
        known = dict(self.level_powers)
        lower = known.get(self.level - 1)
        if lower is not None:
            return lower.largest_mw
        below = max((level for level in known if level < self.level), default=None)
        if below is None:
            return power_mw
        start_mw = known[below].power_mw
        end_mw = known[self.level].power_mw if self.level in known else power_mw
        return start_mw + (end_mw - start_mw) * (self.level - 1 - below) / (self.level - below)

    @property
    def _drift_mw(self) -> float:
        """Return by how much the present level's power has plainly changed since it was remembered, else 0."""
        here = dict(self.level_powers).get(self.level)
        if here is None or self.fit is None:
            return 0.0
        drift_mw = self.fit.power_mw - here.power_mw
        return drift_mw if abs(drift_mw) > (_CHANGE + self.fit.doubt) * here.power_mw else 0.0

    def _remembering(self) -> Governor:
        """Note the present level's power. Where it has changed, something else on the board has: the rest is adapted.

        Less power than remembered makes the other levels unknown again, so that they are tried; more shifts them.
        """
        assert self.fit is not None
        if self.pause_share:
            return self
        known, drift_mw = dict(self.level_powers), self._drift_mw
        measured = LevelPower(self.fit.power_mw, self.fit.weight)
        if drift_mw < 0.0:
            known.clear()
        elif drift_mw > 0.0:
            known = {level: LevelPower(power.power_mw + drift_mw, power.weight) for level, power in known.items()}
        elif self.level in known:
            measured = known[self.level].merged(measured.power_mw, measured.weight)
        known[self.level] = measured
        return replace(self, level_powers=tuple(sorted(known.items(), key=lambda entry: entry[0])))

    def _changed(self, time_ns: int, *, level: int) -> Governor:
        """Set the level and start a new fit, from what the sensor should show now or, where far off, what it shows."""
        assert self.fit is not None
        start_mw = self.fit.expected_mw(time_ns)
        if abs(self.shown_mw - start_mw) > _CHANGE * start_mw:
            start_mw = self.shown_mw
        return replace(self, level=level, fit=PowerFit(start_ns=time_ns, start_mw=start_mw, lag_ns=self.lag_ns))
