"""The geometry of a report's energy: joules by phase as one bar, and the power of the total over time.

Nothing is drawn here: the values go into the SVG of ``report_energy.html``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeprec.cli.power_points import PowerPoint
from edgeprec.cli.stats import energy_circumstances, energy_details, energy_in_words, worthy_phases
from edgeprec.cli.timeline import Box, Tick
from edgeprec.runtime.reply import EnergyStats, Reply, RoundRecord, Stats

__all__ = ["EnergyPanel", "PhaseShare", "PowerChart", "draw_energy"]

_WIDTH, _LEFT, _RIGHT = 1052.0, 120.0, 24.0
_TOP, _PLOT_HEIGHT = 12.0, 132.0
_LANE_TOP, _LANE_HEIGHT = 154.0, 10.0
_AXIS_TOP, _HEIGHT = 172.0, 194.0
_STEPS = (1.0, 2.0, 5.0)  # of a power of ten, between two numbers on an axis


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """One phase of the bar. ``percent`` is its share of all phases; ``text`` has its joules, or that there are none."""

    phase: str
    percent: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerChart:
    """The curve of the total in watts, in the SVG's user units; its path is broken where nothing was seen."""

    width: float
    height: float
    left: float
    right: float
    axis_y: float
    zero_y: float
    path: str
    watts: tuple[Tick, ...]
    seconds: tuple[Tick, ...]
    phases: tuple[Box, ...]
    lane: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPanel:
    """``headline`` is the energy or the reason why there is none; ``chart`` is None where no curve is known."""

    headline: str
    details: str
    shares: tuple[PhaseShare, ...]
    chart: PowerChart | None


def draw_energy(reply: Reply, rounds: Sequence[RoundRecord], points: Sequence[PowerPoint]) -> EnergyPanel:
    """Lay out the energy of one generation; ``points`` is its power over time."""
    stats = reply.stats
    if stats.energy is None:
        return EnergyPanel(headline=energy_details(stats) or energy_in_words(stats), details="", shares=(), chart=None)
    return EnergyPanel(
        headline=energy_in_words(stats),
        details=energy_circumstances(stats.energy),
        shares=tuple(_shares(stats.energy)),
        chart=_chart(stats, rounds, points),
    )


def _shares(energy: EnergyStats) -> Iterator[PhaseShare]:
    known = sum(max(joules, 0.0) for joules in energy.by_phase.values() if joules is not None)
    for phase, joules in worthy_phases(energy).items():
        if joules is None:
            yield PhaseShare(phase, 0.0, "not measured")
        else:
            percent = 100 * max(joules, 0.0) / known if known else 0.0
            yield PhaseShare(phase, round(percent, 2), f"{joules:.3g} J, {percent:.0f} %")


def _chart(stats: Stats, rounds: Sequence[RoundRecord], points: Sequence[PowerPoint]) -> PowerChart | None:
    known_w = [point.total_mw / 1e3 for point in points if point.total_mw is not None]
    if len(known_w) < 2:
        return None
    scale = _Scale(points, known_w)
    return PowerChart(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        axis_y=_AXIS_TOP,
        zero_y=scale.y(0.0),
        path=_path(points, scale),
        watts=tuple(Tick(scale.y(watts), f"{watts:g}") for watts in scale.watt_ticks()),
        seconds=tuple(Tick(scale.x(seconds), f"{seconds:g}") for seconds in scale.second_ticks()),
        phases=tuple(_phase_boxes(stats, rounds, scale)),
        lane=Box(_LEFT, _LANE_TOP, _WIDTH - _RIGHT - _LEFT, _LANE_HEIGHT, "lane", ""),
    )


class _Scale:
    """From seconds and watts to user units. Zero watts are always in sight."""

    def __init__(self, points: Sequence[PowerPoint], known_w: Sequence[float]) -> None:
        self.end_s = max(points[-1].time_ns / 1e9, 1e-9)
        self.low_w, high_w = min(0.0, *known_w), max(0.0, *known_w)
        self.step_w = _nice_step((high_w - self.low_w) or 1.0, parts=4)
        self.high_w = self.step_w * max(math.ceil(high_w / self.step_w), 1)

    def x(self, seconds: float) -> float:
        share = min(max(seconds / self.end_s, 0.0), 1.0)
        return _LEFT + (_WIDTH - _RIGHT - _LEFT) * share

    def y(self, watts: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - (watts - self.low_w) / (self.high_w - self.low_w))

    def watt_ticks(self) -> Iterator[float]:
        first = math.ceil(self.low_w / self.step_w - 1e-9)
        return (_exact(index * self.step_w) for index in range(first, round(self.high_w / self.step_w) + 1))

    def second_ticks(self) -> Iterator[float]:
        step = _nice_step(self.end_s, parts=8)
        return (_exact(index * step) for index in range(math.floor(self.end_s / step) + 1))


def _nice_step(length: float, *, parts: int) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about ``parts`` of them make up ``length``."""
    power = 10.0 ** math.floor(math.log10(length / parts))
    return next((power * step for step in _STEPS if length / (power * step) <= parts), power * 10)


def _exact(value: float) -> float:
    """Return ``value`` without the dust of binary arithmetic: 0.3 for 0.1 * 3."""
    return float(f"{value:.6g}")


def _path(points: Sequence[PowerPoint], scale: _Scale) -> str:
    parts: list[str] = []
    is_drawing = False
    for point in points:
        if point.total_mw is None:
            is_drawing = False
            continue
        parts.append(
            f"{'L' if is_drawing else 'M'}{scale.x(point.time_ns / 1e9):.1f} {scale.y(point.total_mw / 1e3):.1f}"
        )
        is_drawing = True
    return "".join(parts)


def _phase_boxes(stats: Stats, rounds: Sequence[RoundRecord], scale: _Scale) -> Iterator[Box]:
    yield _box("prefill", 0.0, stats.prefill_s, scale, f"prefill: {stats.prefill_s:.3f} s")
    for record in rounds:
        start_s, middle_s = record.start_ns / 1e9, (record.start_ns + record.draft_ns) / 1e9
        title = f"round {record.round}"
        if record.draft_ns:
            yield _box("draft", start_s, middle_s, scale, f"{title}: drafting {record.draft_ns / 1e6:.1f} ms")
        if record.verify_ns:
            end_s = middle_s + record.verify_ns / 1e9
            yield _box("verify", middle_s, end_s, scale, f"{title}: verifying {record.verify_ns / 1e6:.1f} ms")


def _box(kind: str, start_s: float, end_s: float, scale: _Scale, title: str) -> Box:
    left = scale.x(start_s)
    return Box(left, _LANE_TOP, scale.x(end_s) - left, _LANE_HEIGHT, kind, title)
