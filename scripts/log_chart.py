"""A chart of lines over batches as one SVG file: both axes logarithmic, deviations as whiskers, peers dashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from math import floor, log2, log10

from edgeprec.cli.chart import COLORS, STYLE

__all__ = ["LogChart", "LogSeries", "Point", "draw_log_chart"]

_WIDTH, _PLOT = 860.0, 400.0
_LEFT, _RIGHT, _BOTTOM = 76.0, 28.0, 58.0
_LEGEND_COLUMNS, _LEGEND_TOP, _LEGEND_STEP = 3, 54.0, 19.0
_MARGIN = 1.12  # of the values, above and below
_DASHES = ("", "7 4", "2 4")


@dataclass(frozen=True, slots=True)
class Point:
    """A value above 0 at a place above 0, and its deviation; 0 = not known."""

    x: float
    y: float
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class LogSeries:
    """One line. ``style`` 0 is drawn through, 1 dashed, 2 dotted."""

    name: str
    points: Sequence[Point]
    style: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChart:
    """What to draw; there must be a point."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[LogSeries]

    @property
    def places(self) -> list[float]:
        """Return where something was measured."""
        return sorted({point.x for line in self.series for point in line.points})

    @property
    def limits(self) -> tuple[float, float]:
        """Return the lowest and the highest value, whiskers included, with some room."""
        points = [point for line in self.series for point in line.points]
        lowest = min(low if (low := point.y - point.deviation) > 0.0 else point.y for point in points)
        return lowest / _MARGIN, max(point.y + point.deviation for point in points) * _MARGIN

    @property
    def top(self) -> float:
        """Return where the plot begins, below the legend."""
        return _LEGEND_TOP + _LEGEND_STEP * -(-len(self.series) // _LEGEND_COLUMNS) + 14.0

    @property
    def height(self) -> float:
        """Return the height of the picture."""
        return self.top + _PLOT + _BOTTOM

    def at(self, x: float) -> float:
        """Return the pixel of a place."""
        low, high = log2(self.places[0]), log2(self.places[-1])
        inner, edge = _WIDTH - _LEFT - _RIGHT, 24.0
        share = 0.5 if low == high else (log2(x) - low) / (high - low)
        return _LEFT + edge + (inner - 2 * edge) * share

    def level(self, y: float) -> float:
        """Return the pixel of a value."""
        low, high = self.limits
        share = (log10(min(max(y, low), high)) - log10(low)) / (log10(high) - log10(low))
        return self.top + _PLOT * (1.0 - share)


def draw_log_chart(chart: LogChart) -> str:
    """Return the SVG. It has a ground of its own, so that it reads on a dark page too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {chart.height:g}" width="{_WIDTH:g}" '
        f'height="{chart.height:g}" role="img" aria-label="{escape(chart.title)}"><style>{STYLE}</style>'
        f'<rect width="{_WIDTH:g}" height="{chart.height:g}" rx="10" fill="#ffffff"/>'
    )
    return "\n".join((head, *_frame(chart), *_lines(chart), *_legend(chart), "</svg>", ""))


def ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten within the limits; where fewer than two are, all whole multiples.

    A span too narrow for those has its two ends.
    """
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    for steps in ((1, 2, 5), range(1, 10)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) > 1:
            return found
    return [low, high]


def _frame(chart: LogChart) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, chart.top + _PLOT
    yield f'<text class="title" x="{_LEFT:g}" y="30">{escape(chart.title)}</text>'
    for value in ticks(*chart.limits):
        y = chart.level(value)
        yield f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
    yield f'<line class="axis" x1="{_LEFT:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>'
    for place in chart.places:
        yield f'<text x="{chart.at(place):.1f}" y="{bottom + 20:g}" text-anchor="middle">{place:g}</text>'
    middle, end = (_LEFT + right) / 2, chart.height - 14
    yield f'<text class="label" x="{middle:g}" y="{end:g}" text-anchor="middle">{escape(chart.x_label)}</text>'
    yield (
        f'<text class="label" transform="translate(18 {chart.top + _PLOT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>"
    )


def _lines(chart: LogChart) -> Iterator[str]:
    for line, color in zip(chart.series, _colors(chart), strict=True):
        places = [(chart.at(point.x), chart.level(point.y), point) for point in sorted(line.points, key=lambda p: p.x)]
        path = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y, _) in enumerate(places))
        yield f'<path class="line" stroke="{color}"{_dash(line)} d="{path}"/>'
        for x, y, point in places:
            if point.deviation:
                ends = [chart.level(max(point.y + sign * point.deviation, 1e-12)) for sign in (-1, 1)]
                yield f'<line stroke="{color}" x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>'
            about = f"{line.name}, {point.x:g}: {point.y:.4g}" + (
                f" ± {point.deviation:.2g}" if point.deviation else ""
            )
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}" stroke="#ffffff">'
                f"<title>{escape(about)}</title></circle>"
            )


def _legend(chart: LogChart) -> Iterator[str]:
    width = (_WIDTH - _LEFT - _RIGHT) / _LEGEND_COLUMNS
    for index, (line, color) in enumerate(zip(chart.series, _colors(chart), strict=True)):
        x, y = _LEFT + width * (index % _LEGEND_COLUMNS), _LEGEND_TOP + _LEGEND_STEP * (index // _LEGEND_COLUMNS)
        yield f'<path class="line" stroke="{color}"{_dash(line)} d="M{x:g} {y - 4:g}h26"/>'
        yield f'<text x="{x + 34:g}" y="{y:g}">{escape(line.name)}</text>'


def _dash(line: LogSeries) -> str:
    return f' stroke-dasharray="{_DASHES[line.style]}"' if line.style else ""


def _colors(chart: LogChart) -> list[str]:
    """Return a colour a line, beginning anew with every style."""
    numbers = [count() for _ in _DASHES]
    return [COLORS[next(numbers[line.style]) % len(COLORS)] for line in chart.series]
