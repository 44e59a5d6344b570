"""The energy of one rail and each part of its uncertainty."""

from __future__ import annotations

import pytest

from edgeprec.devices.curve import Span
from edgeprec.devices.rail_energy import Timing, measure_rail, rail_series, refusals
from edgeprec.devices.sensor import Quantity, Rail, Sample

MS = 1_000_000
S = 1_000_000_000
POWER = Rail(id="r", label="VDD_IN")
COUNTER = Rail(id="r", label="GPU", quantity=Quantity.ENERGY, step_ms=100.0)


def timing(*, period_ms: float = 50, sensor_ms: float = 50, lag_ms: float = 0) -> Timing:
    """Return the times of a measurement."""
    return Timing(period_ns=round(period_ms * MS), sensor_period_ns=round(sensor_ms * MS), lag_ns=round(lag_ms * MS))


def samples(values: dict[float, float | str | None]) -> list[Sample]:
    """Return one sample per time in seconds; a text is the reason for None."""
    return [
        Sample(
            time_ns=round(at * S),
            values={"r": v if isinstance(v, float | int) else None},
            reasons={"r": v} if isinstance(v, str) else {},
        )
        for at, v in values.items()
    ]


def steady(power_mw: float, *, until: float, lost: tuple[int, ...] = ()) -> list[Sample]:
    """Return samples every 50 ms of a constant power."""
    return samples({i * 0.05: power_mw for i in range(round(until * 20) + 1) if i not in lost})


@pytest.mark.parametrize(
    ("rail", "times", "power_mw", "expected_mj"),
    [
        (POWER, timing(), 1000.0, 2 * 1000 * 0.05),  # one period of power at each end
        (POWER, timing(sensor_ms=200), 1000.0, 2 * 1000 * 0.2),  # the sensor is slower than the reading
        (POWER, timing(period_ms=50, sensor_ms=7), 1000.0, 2 * 1000 * 0.05),  # or faster
        (Rail(id="r", label="a", step=40.0), timing(), 1000.0, 100 + 40 * 2),  # one current step all the time
        (Rail(id="r", label="a", step_ms=100.0), timing(), 1000.0, 200.0),  # new values only every 100 ms
        (POWER, timing(lag_ms=300), 1000.0, 100.0),  # a lag costs nothing while power does not change
        (POWER, timing(), -392.0, 2 * 392 * 0.05),  # power below zero is as uncertain as above
    ],
)
def test_parts_of_the_uncertainty(rail: Rail, times: Timing, power_mw: float, expected_mj: float) -> None:
    """Each declared part of plus_minus has its stated size for a constant power over 2 s."""
    series = rail_series(rail, steady(power_mw, until=3), times)
    found = measure_rail(rail, series, [Span(S // 2, 5 * S // 2)], times)
    assert found.energy_mj == pytest.approx(2 * power_mw)
    assert found.plus_minus_mj == pytest.approx(expected_mj)


def test_lag_counts_where_the_power_differs_between_the_ends() -> None:
    """A sensor that trails by 0.3 s may have missed the change between start and end for that long."""
    times = timing(lag_ms=300)
    ramp = samples({i * 0.05: 1000.0 + 100 * i for i in range(41)})
    with_lag = measure_rail(POWER, rail_series(POWER, ramp, times), [Span(0, 2 * S)], times)
    without = measure_rail(POWER, rail_series(POWER, ramp, timing()), [Span(0, 2 * S)], timing())
    assert with_lag.plus_minus_mj - without.plus_minus_mj == pytest.approx(4000 * 0.3)


@pytest.mark.parametrize("lost_samples", [0, 2, 5, 11, 19])
def test_uncertainty_grows_with_every_lost_sample(lost_samples: int) -> None:
    """The wider the gap, the lower the coverage and the wider the uncertainty, also for a constant power."""
    lost = tuple(range(10, 10 + lost_samples))
    series = rail_series(POWER, steady(8000.0, until=2, lost=lost), timing())
    found = measure_rail(POWER, series, [Span(0, 2 * S)], timing())
    gap_s = 0.05 * (lost_samples + 1) if lost_samples else 0.0
    assert found.covered_ns == pytest.approx((2 - gap_s) * S)
    assert found.plus_minus_mj == pytest.approx(2 * 8000 * 0.05 + 8000 * gap_s)
    assert found.gaps == (1 if lost_samples else 0)


def test_gap_spans_everything_between_the_extremes() -> None:
    """A gap may hide anything between the lowest and the highest power seen, zero included."""
    values = {0.0: 2000.0, 0.05: 9000.0, 0.1: 2000.0, 0.6: 2000.0, 0.65: -500.0}
    found = measure_rail(POWER, rail_series(POWER, samples(values), timing()), [Span(0, 650 * MS)], timing())
    edges = (2000 + 500) * 0.05
    assert found.plus_minus_mj == pytest.approx(edges + 9500 * 0.5)


def test_short_spans_are_uncertain_by_all_of_their_energy() -> None:
    """Stretches shorter than two periods cannot be told from their neighbours: they are uncertain by all they hold."""
    series = rail_series(POWER, steady(1000.0, until=2), timing())
    spans = [Span(i * 20 * MS, i * 20 * MS + 10 * MS) for i in range(50)]
    found = measure_rail(POWER, series, spans, timing())
    assert found.energy_mj == pytest.approx(500.0)
    assert found.plus_minus_mj == pytest.approx(500.0)


def test_counter_step_is_one_unit_of_uncertainty() -> None:
    """A counter with a declared resolution is uncertain by one unit of it, whatever the time."""
    rail = Rail(id="r", label="package-0", quantity=Quantity.ENERGY, step=61.0, step_ms=1.0)
    points = samples({i * 0.05: 100.0 * i for i in range(41)})
    found = measure_rail(rail, rail_series(rail, points, timing()), [Span(0, 2 * S)], timing())
    assert found.energy_mj == pytest.approx(4000.0, rel=0.001)
    assert found.plus_minus_mj == pytest.approx(2 * 2000 * 0.05 + 61)


def test_failed_reads_are_left_out_and_counted_by_reason() -> None:
    """A None is no zero: the curve has neither it nor a drop, and the reasons are counted."""
    values: dict[float, float | str | None] = {round(i * 0.05, 2): 1000.0 for i in range(20)}
    values[0.5] = "EIO"
    values[0.55] = "EIO"
    values[0.6] = "ETIMEDOUT"
    series = rail_series(POWER, samples(values), timing())
    assert series.curve.low_mw == series.curve.high_mw == 1000.0
    assert len(series.times_ns) == 17
    assert refusals(POWER, samples(values)).most_common() == [("EIO", 2), ("ETIMEDOUT", 1)]


def test_restart_on_a_failed_read_is_carried_to_the_next_value() -> None:
    """A counter that began anew while its read failed is still known to have begun anew."""
    taken = samples({i * 0.05: float(i) * 100 for i in range(40)})
    broken = Sample(time_ns=taken[20].time_ns, values={"r": None}, reasons={"r": "EIO"}, restarts=frozenset({"r"}))
    series = rail_series(COUNTER, [*taken[:20], broken, *taken[21:]], timing())
    assert series.restarts_ns == (taken[21].time_ns,)


def test_samples_count_the_readings_at_both_ends() -> None:
    """The readings just outside a window bracket it and count; those of a phase are only its own."""
    series = rail_series(POWER, steady(1000.0, until=2), timing())
    inside = Span(510 * MS, 740 * MS)
    assert measure_rail(POWER, series, [inside], timing()).samples == 6
    assert measure_rail(POWER, series, [inside, Span(900 * MS, 910 * MS)], timing()).samples == 5


def test_negatives_and_restarts_are_counted_inside_only() -> None:
    """Events outside the window are not its own."""
    values = {i * 0.05: (-5.0 if i in (2, 10, 11, 30) else 5.0) for i in range(41)}
    series = rail_series(POWER, samples(values), timing())
    assert measure_rail(POWER, series, [Span(400 * MS, 800 * MS)], timing()).negatives == 2
