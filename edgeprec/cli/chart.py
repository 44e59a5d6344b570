"""A line chart as one SVG file: shares from 0 to 100 % over a few labelled places, columns behind them if wanted.

No script, no font, nothing fetched: it shows the same in a browser, in a Markdown page and in print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLORS", "STYLE", "Chart", "Series", "draw_chart"]

_WIDTH, _HEIGHT = 760.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 24.0, 108.0, 62.0
_COLUMN_SHARE = 0.66  # of a place's width
COLORS = ("#15966a", "#5457cd", "#d97706", "#e5484d", "#2f7fd6", "#667085")
STYLE = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;fill:#475467}"
    ".title{font-size:17px;font-weight:650;fill:#1b2130}.label{font-weight:550}.column{fill:#eef0f4}"
    ".grid{stroke:#e4e7ec}.axis{stroke:#98a2b3}.line{fill:none;stroke-width:2.4;stroke-linejoin:round}"
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a share from 0 to 1 at every place, None where nothing was measured."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What to draw. ``columns`` are shares that stand behind the lines, on the same axis; empty = none."""

    title: str
    x_label: str
    y_label: str
    places: Sequence[str]
    series: Sequence[Series]
    columns: Sequence[float] = ()
    columns_name: str = ""

    def __post_init__(self) -> None:
        lengths = {len(line.values) for line in self.series} | {len(self.places)}
        assert lengths == {len(self.places)}, f"series of {sorted(lengths)} values over {len(self.places)} places"
        assert len(self.columns) in (0, len(self.places)), f"{len(self.columns)} columns over {len(self.places)} places"


def draw_chart(chart: Chart) -> str:
    """Return the SVG."""
    parts = (*_frame(chart), *_columns(chart), *_lines(chart), *_legend(chart))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" '
        f'height="{_HEIGHT:g}" role="img" aria-label="{escape(chart.title)}"><style>{STYLE}</style>'
        f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" rx="10" fill="#ffffff"/>'
    )
    return "\n".join((head, *parts, "</svg>", ""))


def _x(chart: Chart, place: float) -> float:
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(chart.places), 1)
    return _LEFT + step * (place + 0.5)


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - share)


def _frame(chart: Chart) -> Iterator[str]:
    yield f'<text class="title" x="{_LEFT:g}" y="30">{escape(chart.title)}</text>'
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        yield f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{10 * tenth} %</text>'
    yield f'<line class="axis" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{_y(0):.1f}" y2="{_y(0):.1f}"/>'
    for place, label in enumerate(chart.places):
        yield f'<text x="{_x(chart, place):.1f}" y="{_y(0) + 20:.1f}" text-anchor="middle">{escape(label)}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="label" x="{middle:g}" y="{_HEIGHT - 14:g}" text-anchor="middle">{escape(chart.x_label)}</text>'
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    yield (
        f'<text class="label" transform="translate(16 {height:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>"
    )


def _columns(chart: Chart) -> Iterator[str]:
    width = _COLUMN_SHARE * (_x(chart, 1) - _x(chart, 0))
    for place, share in enumerate(chart.columns):
        if share <= 0.0:
            continue
        x, top = _x(chart, place) - width / 2, _y(share)
        yield (
            f'<rect class="column" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_y(0) - top:.1f}">'
            f"<title>{escape(chart.columns_name)}: {100 * share:.1f} %</title></rect>"
        )


def _lines(chart: Chart) -> Iterator[str]:
    for line, color in zip(chart.series, _colors(chart), strict=True):
        points = [(_x(chart, place), _y(v), v) for place, v in enumerate(line.values) if v is not None]
        path = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y, _) in enumerate(points))
        yield f'<path class="line" stroke="{color}" d="{path}"/>'
        for x, y, share in points:
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}" stroke="#ffffff">'
                f"<title>{escape(line.name)}: {100 * share:.1f} %</title></circle>"
            )


def _legend(chart: Chart) -> Iterator[str]:
    """Yield the names in two columns, the background's last."""
    marks = [(line.name, color) for line, color in zip(chart.series, _colors(chart), strict=True)]
    if chart.columns:
        marks.append((chart.columns_name, "#d5d9e2"))
    for index, (name, color) in enumerate(marks):
        x, y = _LEFT + 340.0 * (index % 2), 52.0 + 18.0 * (index // 2)
        yield f'<rect x="{x:g}" y="{y - 6:g}" width="18" height="5" rx="2.5" fill="{color}"/>'
        yield f'<text x="{x + 26:g}" y="{y + 1:g}">{escape(name)}</text>'


def _colors(chart: Chart) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(len(chart.series))]
