"""Joules and money of a load: measured batches and what lies between them, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.errors import ConfigError
from edgeprec.projection import Load, Measured, Value, project

# tokens/s and J/token of a made-up sweep
SWEEP = {1: (100.0, 4.0), 2: (180.0, 2.4), 8: (400.0, 1.0), 32: (800.0, 0.6)}


def make_sweep(plus_minus: float | None = 0.1, **changes: Any) -> list[Measured]:
    """Return the sweep, in no particular order; each value is uncertain by a tenth of itself."""
    return [
        Measured(
            batch=batch,
            tokens_per_s=Value(rate, None if plus_minus is None else plus_minus * rate),
            joules_per_token=Value(joules, None if plus_minus is None else plus_minus * joules),
            origin=f"line {batch}",
            **changes,
        )
        for batch, (rate, joules) in reversed(SWEEP.items())
    ]


def make_load(**changes: Any) -> Load:
    """Return one request of 50 tokens a second; ``changes`` replace fields."""
    values: dict[str, Any] = {"requests_per_s": 1.0, "tokens_per_request": 50.0, "batches": {1: 1.0}}
    return Load(**values | changes)


@pytest.mark.parametrize("batch", list(SWEEP))
def test_a_measured_batch_is_what_was_measured(batch: int) -> None:
    """No number of another batch comes in, and the uncertainty is the measurement's."""
    (estimate,) = project(make_sweep(), make_load(batches={batch: 1.0})).estimates
    rate, joules = SWEEP[batch]
    assert (estimate.tokens_per_s.value, estimate.joules_per_token.value) == (rate, joules)
    assert estimate.joules_per_token.plus_minus == pytest.approx(0.1 * joules)
    assert [point.origin for point in estimate.rests_on] == [f"line {batch}"]


def test_between_two_batches_lies_the_straight_line_over_the_logarithm() -> None:
    """Batch 4 is half-way from 2 to 8; its doubt is the larger end's and half of the difference."""
    (estimate,) = project(make_sweep(), make_load(batches={4: 1.0})).estimates
    assert estimate.tokens_per_s.value == pytest.approx(290.0)
    assert estimate.joules_per_token.value == pytest.approx(1.7)
    assert estimate.joules_per_token.plus_minus == pytest.approx(0.24 + 0.7)
    assert [point.batch for point in estimate.rests_on] == [2, 8]


@pytest.mark.parametrize(("batch", "nearest"), [(33, 32), (64, 32), (1000, 32)])
def test_nothing_is_extrapolated(batch: float, nearest: int) -> None:
    """The refusal names the nearest batch that was measured."""
    expected = f"batch {batch:g} lies outside of the measured batches: the nearest measured one is {nearest}"
    with pytest.raises(ConfigError, match=expected):
        project(make_sweep(), make_load(batches={8: 0.5, batch: 0.5}))
    with pytest.raises(ConfigError, match=r"batch 1 lies outside .* nearest measured one is 8"):
        project([point for point in make_sweep() if point.batch >= 8], make_load())
    with pytest.raises(ConfigError, match="no batch was measured"):
        project([], make_load())


def test_a_mix_is_weighted_by_tokens() -> None:
    """Half of the tokens at batch 1, half at 8: mean joules, and seconds add, not rates."""
    found = project(make_sweep(), make_load(batches={1: 0.5, 8: 0.5}))
    assert found.joules_per_token.value == pytest.approx(2.5)
    assert found.joules_per_token.plus_minus == pytest.approx(0.25)
    assert found.tokens_per_s_of_one.value == pytest.approx(2 / (1 / 100 + 1 / 400))


@pytest.mark.parametrize(
    ("requests", "machines", "busy"), [(1.0, 1, 0.5), (2.0, 1, 1.0), (2.2, 2, 0.55), (20.0, 10, 1.0), (0.002, 1, 0.001)]
)
def test_machines_are_enough_and_no_more(requests: float, machines: int, busy: float) -> None:
    """At 100 tokens/s one machine takes two such requests a second."""
    found = project(make_sweep(), make_load(requests_per_s=requests))
    assert (found.machines, found.busy_share) == (machines, pytest.approx(busy))


def test_energy_and_money_of_a_day() -> None:
    """50 tokens/s at 4 J are 200 W; half of the time the machine rests at 60 W: 230 W are 5.52 kWh a day."""
    found = project(make_sweep(idle_watts=60.0), make_load(price_per_kwh=0.5))
    assert found.busy_watts.value == pytest.approx(200.0)
    assert found.kwh_per_day.value == pytest.approx(5.52)
    assert found.kwh_per_day.plus_minus == pytest.approx(0.1 * 4.8)
    assert found.money_per_day is not None
    assert found.money_per_million_tokens is not None
    assert found.money_per_day.value == pytest.approx(2.76)
    assert found.money_per_million_tokens.value == pytest.approx(2.76 / 4.32)


def test_power_at_rest_is_that_of_the_rows_it_rests_on() -> None:
    """Commands of one file have a baseline each: those of other batches do not count, and two are a mean."""
    sweep = [replace(point, idle_watts=10.0 * point.batch, notes=(f"note {point.batch}",)) for point in make_sweep()]
    found = project(sweep, make_load(batches={4: 1.0}))
    assert found.idle_watts == pytest.approx((20.0 + 80.0) / 2)
    assert found.notes == ("note 2", "note 8")
    busy = 50.0 / 290.0
    doubt = 50.0 * (0.24 + 0.7) + 30.0 * (1 - busy)
    assert found.kwh_per_day.plus_minus == pytest.approx(doubt * 86_400 / 3.6e6)
    one = project(sweep, make_load(batches={2: 1.0}))
    assert (one.idle_watts, one.notes) == (20.0, ("note 2",))


def test_what_was_not_measured_is_not_known() -> None:
    """Without a price there is no money, without repeats no uncertainty, without a baseline busy time alone."""
    found = project(make_sweep(None), make_load(batches={4: 0.5, 8: 0.5}))
    assert (found.money_per_day, found.money_per_million_tokens, found.idle_watts) == (None, None, None)
    assert found.joules_per_token.plus_minus is None
    assert found.kwh_per_day.plus_minus is None
    assert found.kwh_per_day.value == pytest.approx(50 * 1.35 * 86_400 / 3.6e6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests_per_s": 0.0}, "requests_per_s is 0.0, expected more than 0"),
        ({"requests_per_s": float("nan")}, "requests_per_s is nan"),
        ({"tokens_per_request": -1.0}, "tokens_per_request is -1.0"),
        ({"tokens_per_request": float("inf")}, "tokens_per_request is inf"),
        ({"requests_per_s": 1e300}, "requests_per_s is 1e+300, expected more than 0, from 1e-09 to 1e+12"),
        ({"requests_per_s": 1e-300}, "requests_per_s is 1e-300, expected more than 0, from 1e-09 to 1e+12"),
        ({"tokens_per_request": 1e300}, "tokens_per_request is 1e+300"),
        ({"price_per_kwh": -0.1}, "price_per_kwh is -0.1, expected 0 or more"),
        ({"price_per_kwh": 1e300}, "price_per_kwh is 1e+300, expected 0 or more, from 1e-09 to 1e+12"),
        ({"price_per_kwh": float("nan")}, "price_per_kwh is nan"),
        ({"batches": {1: float("nan")}}, "with shares above 0"),
        ({"batches": {float("nan"): 1.0}}, "expected batches of 1 or more"),
        ({"batches": {}}, "expected batches of 1 or more with shares above 0"),
        ({"batches": {0.5: 1.0}}, "expected batches of 1 or more"),
        ({"batches": {1: 0.5}}, "the shares of the batches sum to 0.5, expected 1"),
        ({"batches": {1: 1.5, 2: -0.5}}, "with shares above 0"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(changes: dict[str, Any], expected: str) -> None:
    """The message names field, value and range."""
    with pytest.raises(ConfigError) as caught:
        make_load(**changes)
    assert expected in str(caught.value)


@pytest.mark.parametrize("value", [1e300, 1e-300, float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("name", ["tokens_per_s", "joules_per_token"])
def test_a_measurement_that_cannot_be_is_refused(name: str, value: float) -> None:
    """Before it makes every number that follows from it infinite."""
    with pytest.raises(ConfigError, match=rf"{name} is .*, expected 1e-09 to 1e\+12: measure batch 32 again"):
        replace(make_sweep()[0], **{name: Value(value, None)})  # type: ignore[arg-type]


@given(st.floats(1e-9, 1e12), st.floats(1e-9, 1e12), st.floats(1e-9, 1e12), st.floats(1e-9, 1e12))
def test_every_number_is_finite(requests: float, tokens: float, rate: float, joules: float) -> None:
    """For the smallest and the largest numbers that are taken: no overflow, no division by zero."""
    point = Measured(batch=1, tokens_per_s=Value(rate, rate), joules_per_token=Value(joules, joules), origin="line 1")
    load = make_load(requests_per_s=requests, tokens_per_request=tokens, price_per_kwh=1e12)
    found = project([replace(point, idle_watts=1e12)], load)
    assert found.money_per_million_tokens is not None
    for value in (found.kwh_per_day, found.money_per_million_tokens, found.tokens_per_s_of_one):
        assert value.plus_minus is not None
        assert isfinite(value.value) and isfinite(value.plus_minus)  # noqa: PT018
    assert found.machines >= 1


@given(st.floats(1.0, 32.0))
def test_an_estimate_lies_between_the_measurements_it_rests_on(batch: float) -> None:
    """For any batch inside the sweep: never beyond either end, and the doubt never shrinks."""
    (estimate,) = project(make_sweep(), make_load(batches={batch: 1.0})).estimates
    ends = [point.joules_per_token.value for point in estimate.rests_on]
    assert min(ends) - 1e-9 <= estimate.joules_per_token.value <= max(ends) + 1e-9
    assert estimate.rests_on[0].batch <= batch <= estimate.rests_on[-1].batch
    assert estimate.joules_per_token.plus_minus is not None
    assert estimate.joules_per_token.plus_minus >= 0.1 * min(ends)
