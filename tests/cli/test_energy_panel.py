"""The report's energy: phases that add up, a curve with holes where nothing was seen, or the reason."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.cli.energy_panel import EnergyPanel, draw_energy
from edgeprec.cli.power_points import PowerPoint, power_points
from edgeprec.cli.report import Report, ReportRun, render_report
from edgeprec.runtime.reply import EnergyStats

PHASES: dict[str, float | None] = {"prefill": 1.0, "draft": 2.0, "verify": 5.0}


def make_energy(by_phase: dict[str, float | None], **changes: Any) -> EnergyStats:
    """Return the energy of a scripted reply; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "joules": sum(joules or 0.0 for joules in by_phase.values()),
        "joules_per_token": 0.35,
        "source": "ina3221",
        "rail": "VDD_IN",
        "is_total": True,
        "coverage": 1.0,
        "plus_minus_joules": 0.1,
    }
    return EnergyStats(by_phase=by_phase, **values | changes)


def make_points(*watts: float | None, step_s: float = 0.1) -> tuple[PowerPoint, ...]:
    """Return the power of the total, one point every ``step_s`` seconds."""
    return tuple(
        PowerPoint(round(index * step_s * 1e9), {"VDD_IN": mw}, mw)
        for index, mw in enumerate(None if value is None else value * 1e3 for value in watts)
    )


def panel_of(
    script: SimpleNamespace, *watts: float | None, by_phase: dict[str, float | None] | None = None
) -> EnergyPanel:
    """Draw a scripted run of twelve tokens."""
    energy = make_energy(PHASES if by_phase is None else by_phase)
    reply = script.reply([script.event(0)], stats=script.stats(12, energy=energy, energy_note=None))
    return draw_energy(reply, [script.round(index) for index in range(3)], make_points(*watts))


def heights(path: str) -> list[float]:
    """Return the y of every point of a path."""
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]


def test_the_bar_shows_each_phases_share(script: SimpleNamespace) -> None:
    """Joules and per cent stand beside it."""
    shares = {share.phase: share for share in panel_of(script, 8, 8).shares}
    assert {phase: share.percent for phase, share in shares.items()} == {"prefill": 12.5, "draft": 25.0, "verify": 62.5}
    assert shares["verify"].text == "5 J, 62 %"


def test_a_phase_that_was_not_measured_has_no_width(script: SimpleNamespace) -> None:
    """Nor does one without energy, and nothing is divided by zero."""
    shares = {s.phase: s for s in panel_of(script, 8, 8, by_phase={"prefill": None, "verify": 5.0}).shares}
    assert (shares["prefill"].percent, shares["prefill"].text) == (0.0, "not measured")
    assert all(share.percent == 0 for share in panel_of(script, 0, 0, by_phase={"draft": 0.0, "verify": -0.1}).shares)


def test_a_moment_between_the_phases_is_left_out(script: SimpleNamespace) -> None:
    """The time between the last pass and the end is no part of the story."""
    assert "idle" not in {
        share.phase for share in panel_of(script, 8, 8, by_phase={"verify": 5.0, "idle": 1e-5}).shares
    }


def test_more_watts_stand_higher(script: SimpleNamespace) -> None:
    """And zero lies on the axis."""
    chart = panel_of(script, 0, 5, 10).chart
    assert chart is not None
    zero, middle, top = heights(chart.path)
    assert zero == pytest.approx(chart.zero_y, abs=0.1)
    assert zero > middle > top
    assert [tick.label for tick in chart.watts] == ["0", "5", "10"]


def test_the_curve_is_broken_where_nothing_was_seen(script: SimpleNamespace) -> None:
    """A line over a gap would be an invented measurement."""
    chart = panel_of(script, 8, 8, None, 8, 8).chart
    assert chart is not None
    assert re.findall(r"[ML]", chart.path) == ["M", "L", "M", "L"]


def test_figures_below_zero_are_drawn_below_the_axis(script: SimpleNamespace) -> None:
    """They are data, and they stay inside the picture."""
    chart = panel_of(script, -1, 4).chart
    assert chart is not None
    low = heights(chart.path)[0]
    assert chart.zero_y < low <= chart.lane.y


@pytest.mark.parametrize("watts", [(), (8.0,), (None, None, None), (None, 8.0)])
def test_hardly_a_sample_makes_no_curve(script: SimpleNamespace, watts: tuple[float | None, ...]) -> None:
    """The joules are shown all the same."""
    panel = panel_of(script, *watts)
    assert panel.chart is None
    assert panel.shares


def test_phases_follow_each_other_on_the_time_axis(script: SimpleNamespace) -> None:
    """Prefill first, then drafts and checks, all within the axis, each with its duration."""
    chart = panel_of(script, *([8] * 4)).chart
    assert chart is not None
    assert [box.kind for box in chart.phases[:3]] == ["prefill", "draft", "verify"]
    assert "round 0: drafting 9.0 ms" in {box.title for box in chart.phases}
    for box in chart.phases:
        assert chart.left <= box.x <= box.x + box.width <= chart.right + 1e-6


def test_without_energy_the_whole_reason_stands_there(script: SimpleNamespace) -> None:
    """The page is where there is room for what each sensor answered."""
    reason = "no power sensor can be read (jetson: no INA3221; rapl: no zones)"
    reply = script.reply([script.event(0)], stats=script.stats(1, energy_note=reason))
    panel = draw_energy(reply, [], ())
    assert panel == EnergyPanel(headline=f"energy not measured: {reason}", details="", shares=(), chart=None)


@given(watts=st.lists(st.none() | st.floats(-10, 2_000), min_size=0, max_size=40), step_s=st.floats(1e-3, 100))
def test_any_curve_stays_inside_the_picture(watts: list[float | None], step_s: float) -> None:
    """From milliseconds to hours, from a gated rail to a rack, with gaps: few numbers on each axis, all distinct."""
    from edgeprec.cli.energy_panel import _chart

    stats: Any = SimpleNamespace(prefill_s=step_s)
    chart = _chart(stats, [], make_points(*watts, step_s=step_s))
    if chart is None:
        assert sum(value is not None for value in watts) < 2
        return
    assert all(0 <= y <= chart.lane.y for y in heights(chart.path))
    assert chart.path.count("M") + chart.path.count("L") == sum(value is not None for value in watts)
    for ticks in (chart.watts, chart.seconds):
        labels = [tick.label for tick in ticks]
        assert 1 <= len(labels) <= 11
        assert len(set(labels)) == len(labels)
        assert all(math.isfinite(tick.at) for tick in ticks)


def test_a_generation_without_a_meter_has_no_points() -> None:
    """Nothing measured, nothing drawn."""
    assert power_points(SimpleNamespace(window=None, tally=SimpleNamespace(start_ns=0))) == ()


def test_the_page_holds_bar_and_curve(script: SimpleNamespace) -> None:
    """What was laid out is drawn."""
    events = [script.event(index) for index in range(12)]
    stats = script.stats(12, energy=make_energy(PHASES, power_mode="MODE_30W"), energy_note=None)
    run = ReportRun(
        name="A run",
        prompt="Why?",
        reply=script.reply(events, stats=stats),
        events=events,
        rounds=[script.round(0)],
        power=make_points(8, 9, 8),
    )
    page = render_report(Report(title="pair", facts=[], num_layers=6, runs=[run]))
    assert 'aria-label="Joules by phase"' in page
    assert 'aria-label="Power of the total over time, in watts"' in page
    assert "verify 5 J, 62 %" in page
    assert "ina3221 VDD_IN; power mode MODE_30W" in page
