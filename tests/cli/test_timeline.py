"""The picture in a report: every token has its place, and nothing is drawn outside the axes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from edgeprec.cli.timeline import Timeline, draw_timeline
from edgeprec.gears import Gear
from edgeprec.runtime.reply import TokenSource


def draw(
    script: SimpleNamespace, count: int, *, thresholds: tuple[float, float] | None = (0.5, 2.0), rounds: int = 99
) -> Timeline:
    """Lay out ``count`` scripted tokens."""
    events = [script.event(index) for index in range(count)]
    records = [script.round(index) for index in range(rounds)]
    return draw_timeline(events, records, num_layers=script.layers, thresholds=thresholds)


@pytest.mark.parametrize("count", [0, 1, 2, 40, 700])
def test_everything_lies_inside_the_picture(script: SimpleNamespace, count: int) -> None:
    """A generation of any length, none at all included, fits its own frame."""
    timeline = draw(script, count)
    assert len(timeline.dots) == count
    assert all(timeline.left <= dot.x <= timeline.right for dot in timeline.dots)
    assert all(timeline.entropy_top <= dot.y <= timeline.entropy_bottom for dot in timeline.dots)
    for box in (*timeline.gears, *timeline.layers, *timeline.drafts):
        assert timeline.left <= box.x
        assert box.x + box.width <= timeline.right + 1e-6
        assert box.width > 0
        assert 0 < box.height < timeline.height
    assert timeline.right <= timeline.width


def test_more_entropy_is_higher_up(script: SimpleNamespace) -> None:
    """SVG's y grows downwards; the curve's must not."""
    events = [script.event(index, entropy_bits=bits) for index, bits in enumerate((0.0, 1.0, 2.5))]
    low, middle, high = draw_timeline(events, [], num_layers=6, thresholds=None).dots
    assert high.y < middle.y < low.y


def test_gears_are_merged_into_runs(script: SimpleNamespace) -> None:
    """One box for each stretch in one gear, together as wide as the axis."""
    order = (Gear.LOW, Gear.LOW, Gear.HIGH, Gear.LOW, Gear.LOW)
    events = [script.event(index, gear=gear) for index, gear in enumerate(order)]
    timeline = draw_timeline(events, [], num_layers=6, thresholds=None)
    assert [box.kind for box in timeline.gears] == ["low", "high", "low"]
    assert sum(box.width for box in timeline.gears) == pytest.approx(timeline.right - timeline.left)


def test_a_round_shows_accepted_below_rejected(script: SimpleNamespace) -> None:
    """The column's height is the draft's length, its lower part what FP16 accepted."""
    timeline = draw(script, 4, rounds=1)
    accepted, rejected = timeline.drafts
    assert (accepted.kind, rejected.kind) == ("accepted", "rejected")
    assert accepted.height == pytest.approx(2 * rejected.height)
    assert rejected.y + rejected.height == pytest.approx(accepted.y)


def test_a_rounds_tokens_past_the_end_are_left_out(script: SimpleNamespace) -> None:
    """The last round of a reply may have emitted more than was kept."""
    timeline = draw(script, 3, rounds=1)
    assert all(box.x + box.width <= timeline.right for box in timeline.drafts)


def test_layers_stand_over_their_tokens(script: SimpleNamespace) -> None:
    """A token's column holds the layers that ran in INT4: the first at the bottom, the head on top; FP16 has none."""
    plan = (True, True, False, False, False, False, True)
    events = [script.event(i, round=1, source=TokenSource.DRAFT) for i in range(2)]
    events.append(script.event(2, round=1, source=TokenSource.TARGET))
    timeline = draw_timeline(events, [script.round(1, draft_plan=plan)], num_layers=6, thresholds=None)
    layers, head = sorted(timeline.layers, key=lambda box: -box.y)
    lane = timeline.lanes[0]
    assert layers.y + layers.height == pytest.approx(lane.y + lane.height)
    assert head.y == pytest.approx(lane.y)
    assert layers.height == pytest.approx(2 * head.height)
    assert layers.width == head.width == pytest.approx(timeline.dots[2].x - timeline.dots[0].x)
    assert layers.title == "tokens 0 to 1: layers 0 to 1 in INT4"
    assert head.title == "tokens 0 to 1: the head in INT4"


def test_thresholds_are_lines_at_their_bits(script: SimpleNamespace) -> None:
    """The band between them is where the gear is kept."""
    timeline = draw(script, 10)
    low, high = timeline.thresholds
    assert high.y < low.y
    assert timeline.band is not None
    assert timeline.band.height == pytest.approx(low.y - high.y)
    assert draw(script, 10, thresholds=None).thresholds == ()


def test_a_threshold_far_above_does_not_flatten_the_curve(script: SimpleNamespace) -> None:
    """A theta_high of 32 bits means never: it is named at the upper edge with an arrow."""
    timeline = draw(script, 20, thresholds=(0.5, 32.0))
    assert max(int(tick.label) for tick in timeline.bits) < 8
    high = timeline.thresholds[1]
    assert high.y == timeline.entropy_top
    assert high.label.endswith("32 \u2191")


def test_a_value_that_is_not_finite_is_drawn_at_zero(script: SimpleNamespace) -> None:
    """A drafter without logits has no entropy; the picture must not break on it."""
    events = [script.event(0, entropy_bits=math.nan), script.event(1, entropy_bits=1.0)]
    first, _ = draw_timeline(events, [], num_layers=6, thresholds=None).dots
    assert first.y == pytest.approx(184.0)


def test_long_generations_scroll(script: SimpleNamespace) -> None:
    """Tokens keep a width one can hover over; the picture grows instead."""
    assert draw(script, 2000).width > draw(script, 50).width
