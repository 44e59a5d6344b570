"""What a reading promises whatever is lost: the truth lies within its uncertainty, its coverage says what was seen."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

fake = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_meter.py"))))
S, MS = fake.S, fake.MS

lost_reads = st.sets(st.integers(1, 59))
watts = st.floats(0.5, 700)
seconds = st.floats(0.2, 3.0)


def missing(lost: set[int]) -> object:
    """Return which sampling calls are lost, by their number."""
    return lambda ns: round(ns / (50 * MS)) in lost


@settings(max_examples=60, deadline=None)
@given(watts, seconds, lost_reads)
def test_lost_samples_never_make_a_false_claim(power_w: float, length_s: float, lost: set[int]) -> None:
    """However many samples are lost: 0 <= coverage <= 1, joules cover just that share, and ± reaches the truth."""
    bench = fake.Bench(lambda _: {"r1": power_w * 1000})
    bench.skipped = missing(lost)
    with bench.meter.window("work") as window:
        bench.run(length_s)
    if window.reading is None:
        assert "lie more than 100 ms apart" in window.note
        return
    reading, truth = window.reading, power_w * length_s
    assert 0 < reading.coverage <= 1
    assert abs(reading.joules - truth * reading.coverage) < 1e-6 * truth + 1e-9
    assert reading.joules - reading.plus_minus_joules <= truth <= reading.joules + reading.plus_minus_joules


@settings(max_examples=60, deadline=None)
@given(watts, seconds, lost_reads, st.integers(0, 99))
def test_a_counter_is_right_whatever_polls_are_lost(
    power_w: float, length_s: float, lost: set[int], phase: int
) -> None:
    """A counter either says that the window was too short, or its joules are within the stated uncertainty."""
    bench = fake.Bench(
        lambda ns: {"gpu0": 1e9 + (ns + phase * MS) // (100 * MS) * power_w * 100}, rails=(fake.counter_rail(),)
    )
    bench.skipped = missing(lost)
    with bench.meter.window("work") as window:
        bench.run(length_s)
    if window.reading is None:
        assert "did not step" in window.note
        return
    reading, truth = window.reading, power_w * length_s
    assert abs(reading.joules - truth) <= reading.plus_minus_joules + 1e-6 * truth
    assert reading.resets == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["prefill", "draft", "verify"]), st.integers(1, 40)), min_size=1, max_size=40)
)
def test_phases_add_up(marks: list[tuple[str, int]]) -> None:
    """Phases that fill a window sum to its joules and seconds; those shorter than the sensor sees are all uncertain."""
    bench = fake.Bench(lambda ns: {"r1": 5000.0 + (ns // (250 * MS)) % 3 * 9000}, period_ms=10.0)
    with bench.meter.window("reply") as window:
        for phase, periods in marks:
            window.mark(phase)
            bench.run(periods / 100)
    found = list(window.by_phase.values())
    assert abs(sum(reading.joules for reading in found) - window.reading.joules) < 1e-6
    assert abs(sum(reading.seconds for reading in found) - window.reading.seconds) < 1e-6
    lengths: dict[str, list[int]] = {}
    for (phase, periods), (before, _) in zip(marks, [("", 0), *marks], strict=False):
        if phase == before:
            lengths[phase][-1] += periods
        else:
            lengths.setdefault(phase, []).append(periods)
    for phase, reading in window.by_phase.items():
        if max(lengths[phase]) <= 10:  # 100 ms, two periods of the sensor
            assert reading.plus_minus_joules >= reading.joules - 1e-9
