"""Joules and money of a stated load, from a measured batch sweep. It interpolates measured batches and nothing else.

Between two measured batches a value is taken on the straight line over log2(batch); its uncertainty is the larger one
of both ends and half of the difference between them on top. Outside of the measured batches there is no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isclose, log2

from edgeprec.errors import ConfigError

__all__ = ["Estimate", "Load", "Measured", "Projection", "Value", "project"]

_JOULES_PER_KWH = 3.6e6
_SECONDS_PER_DAY = 86_400
_TOKENS = 1e6
_LEAST, _MOST = 1e-9, 1e12  # of every number that comes in, so that all that follow from them are finite


@dataclass(frozen=True, slots=True)
class Value:
    """A number and how far the truth may lie from it; ``plus_minus`` None = not known."""

    value: float
    plus_minus: float | None

    def scaled(self, factor: float) -> Value:
        """Return the value in another unit."""
        return Value(self.value * factor, None if self.plus_minus is None else self.plus_minus * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One batch of a sweep. ``origin`` tells where it stands, ``notes`` what to know of its numbers.

    ``idle_watts`` is the machine at rest, as measured by the command that measured the batch; None = it did not.
    """

    batch: int
    tokens_per_s: Value  # of all sequences together
    joules_per_token: Value
    origin: str
    idle_watts: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tokens_per_s", "joules_per_token"):
            value = getattr(self, name).value
            if not _is_in_range(value):
                raise ConfigError(
                    f"{name} is {value!r}, expected {_LEAST:g} to {_MOST:g}: measure batch {self.batch} again"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked. ``batches`` is batch -> share of the tokens decoded at it; the shares sum to 1."""

    requests_per_s: float
    tokens_per_request: float
    batches: Mapping[float, float]
    price_per_kwh: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_s", "tokens_per_request"):
            if not _is_in_range(getattr(self, name)):
                raise ConfigError(
                    f"load: {name} is {getattr(self, name)!r}, expected more than 0, from {_LEAST:g} to {_MOST:g}"
                )
        if self.price_per_kwh is not None and not (self.price_per_kwh == 0.0 or _is_in_range(self.price_per_kwh)):
            raise ConfigError(
                f"load: price_per_kwh is {self.price_per_kwh!r}, expected 0 or more, from {_LEAST:g} to {_MOST:g}"
            )
        if not self.batches or not all(batch >= 1 and share > 0.0 for batch, share in self.batches.items()):
            raise ConfigError(
                f"load: batches is {dict(self.batches)}, expected batches of 1 or more with shares above 0"
            )
        if not isclose(sum(self.batches.values()), 1.0, rel_tol=1e-6):
            raise ConfigError(f"load: the shares of the batches sum to {sum(self.batches.values()):g}, expected 1")

    @property
    def tokens_per_s(self) -> float:
        """Return the new tokens that are asked for every second."""
        return self.requests_per_s * self.tokens_per_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One batch of the load and the one or two measurements it rests on."""

    batch: float
    share: float
    tokens_per_s: Value
    joules_per_token: Value
    rests_on: tuple[Measured, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What a load takes. ``machines`` is how many like the measured one; the busy share is of all of them.

    ``idle_watts`` is the mean of the measurements the estimates rest on; None = the machine at rest was not measured:
    energy then counts busy time only. ``notes`` are those of the same measurements.
    """

    estimates: tuple[Estimate, ...]
    joules_per_token: Value
    tokens_per_s_of_one: Value
    machines: int
    busy_share: float
    busy_watts: Value
    idle_watts: float | None
    kwh_per_day: Value
    money_per_day: Value | None
    money_per_million_tokens: Value | None
    notes: tuple[str, ...]


def project(measured: Sequence[Measured], load: Load) -> Projection:
    """Return what a load takes on machines like the one that was measured.

    Raises:
        ConfigError: the load names a batch outside of those measured.
    """
    estimates = tuple(_estimate(measured, batch, share) for batch, share in sorted(load.batches.items()))
    joules_per_token = _weighted([(estimate.share, estimate.joules_per_token) for estimate in estimates])
    seconds = _weighted([(estimate.share, _inverse(estimate.tokens_per_s)) for estimate in estimates])
    rate = _inverse(seconds)
    needed = load.tokens_per_s / rate.value
    machines = max(ceil(needed - 1e-9), 1)
    busy_watts = joules_per_token.scaled(load.tokens_per_s)
    rests_on = list({point.batch: point for estimate in estimates for point in estimate.rests_on}.values())
    idle = _idle_watts(rests_on)
    watts = busy_watts if idle is None else _sum(busy_watts, idle.scaled(max(machines - needed, 0.0)))
    kwh_per_day = watts.scaled(_SECONDS_PER_DAY / _JOULES_PER_KWH)
    money_per_day = None if load.price_per_kwh is None else kwh_per_day.scaled(load.price_per_kwh)
    tokens_per_day = load.tokens_per_s * _SECONDS_PER_DAY
    return Projection(
        estimates=estimates,
        joules_per_token=joules_per_token,
        tokens_per_s_of_one=rate,
        machines=machines,
        busy_share=needed / machines,
        busy_watts=busy_watts,
        idle_watts=None if idle is None else idle.value,
        kwh_per_day=kwh_per_day,
        money_per_day=money_per_day,
        money_per_million_tokens=None if money_per_day is None else money_per_day.scaled(_TOKENS / tokens_per_day),
        notes=tuple(dict.fromkeys(note for point in rests_on for note in point.notes)),
    )


def _is_in_range(value: float) -> bool:
    return _LEAST <= value <= _MOST


def _idle_watts(points: Sequence[Measured]) -> Value | None:
    """Return the mean power at rest of measurements, and half of the span it was measured over; None = of none."""
    known = [point.idle_watts for point in points if point.idle_watts is not None]
    return Value(sum(known) / len(known), (max(known) - min(known)) / 2) if known else None


def _sum(one: Value, other: Value) -> Value:
    doubt = None if one.plus_minus is None or other.plus_minus is None else one.plus_minus + other.plus_minus
    return Value(one.value + other.value, doubt)


def _estimate(measured: Sequence[Measured], batch: float, share: float) -> Estimate:
    below = max((point for point in measured if point.batch <= batch), key=lambda point: point.batch, default=None)
    above = min((point for point in measured if point.batch >= batch), key=lambda point: point.batch, default=None)
    if below is None or above is None:
        nearest = below or above
        known = "no batch was measured" if nearest is None else f"the nearest measured one is {nearest.batch}"
        raise ConfigError(f"batch {batch:g} lies outside of the measured batches: {known}, and nothing is extrapolated")
    ends = (below,) if below.batch == above.batch else (below, above)
    at = 0.0 if len(ends) == 1 else log2(batch / below.batch) / log2(above.batch / below.batch)
    return Estimate(
        batch=batch,
        share=share,
        tokens_per_s=_between(below.tokens_per_s, above.tokens_per_s, at),
        joules_per_token=_between(below.joules_per_token, above.joules_per_token, at),
        rests_on=ends,
    )


def _between(low: Value, high: Value, at: float) -> Value:
    value = low.value + at * (high.value - low.value)
    if low.plus_minus is None or high.plus_minus is None:
        return Value(value, None)
    gap = 0.0 if at in (0.0, 1.0) else abs(high.value - low.value) / 2
    return Value(value, max(low.plus_minus, high.plus_minus) + gap)


def _weighted(parts: Sequence[tuple[float, Value]]) -> Value:
    """Return the mean of values by share; uncertainties are added, not squared: they may all err to one side."""
    known = [share * value.plus_minus for share, value in parts if value.plus_minus is not None]
    total = sum(share * value.value for share, value in parts)
    return Value(total, sum(known) if len(known) == len(parts) else None)


def _inverse(value: Value) -> Value:
    """Return 1 / value with the same relative uncertainty."""
    inverse = 1.0 / value.value
    return Value(inverse, None if value.plus_minus is None else value.plus_minus / value.value * inverse)
