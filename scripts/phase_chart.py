"""Columns in groups, each of stacked parts, as one SVG file: the energy of ways of decoding by phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from edgeprec.cli.chart import COLORS, STYLE

__all__ = ["Column", "PhaseChart", "draw_phase_chart"]

_WIDTH, _PLOT, _TOP, _BOTTOM = 860.0, 330.0, 104.0, 72.0
_LEFT, _RIGHT = 70.0, 24.0
_STEPS = 5
_SHADES = ("#344054", *COLORS)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: where it stands, what it is called, and its parts from the ground up."""

    group: str
    name: str
    parts: Mapping[str, float]

    @property
    def height(self) -> float:
        """Return all parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChart:
    """What to draw; there must be a column. ``unit`` follows the values, such as ``%``; parts stand as ``phases`` do.

    Where every group has one column of its name, all are of one colour.
    """

    title: str
    x_label: str
    y_label: str
    columns: Sequence[Column]
    phases: Sequence[str]
    unit: str = ""

    @property
    def groups(self) -> list[str]:
        """Return the groups in order."""
        return list(dict.fromkeys(column.group for column in self.columns))

    @property
    def names(self) -> list[str]:
        """Return what columns are told apart by within a group; none where the groups say it already."""
        if all(column.name == column.group for column in self.columns):
            return []
        return list(dict.fromkeys(column.name for column in self.columns))

    @property
    def lines(self) -> int:
        """Return how many steps there are above the ground."""
        return ceil(max(column.height for column in self.columns) / self.step)

    @property
    def step(self) -> float:
        """Return the distance of two lines of the grid, a round number."""
        needed = max(column.height for column in self.columns) / _STEPS
        power = 10.0 ** floor(log10(needed))
        return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= needed)


def draw_phase_chart(chart: PhaseChart) -> str:
    """Return the SVG. It has a ground of its own, so that it reads on a dark page too."""
    height = _TOP + _PLOT + _BOTTOM
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" width="{_WIDTH:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(chart.title)}"><style>{STYLE}</style>'
        f'<rect width="{_WIDTH:g}" height="{height:g}" rx="10" fill="#ffffff"/>'
    )
    return "\n".join((head, *_frame(chart), *_columns(chart), *_legend(chart), "</svg>", ""))


def _frame(chart: PhaseChart) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _TOP + _PLOT
    yield f'<text class="title" x="{_LEFT:g}" y="30">{escape(chart.title)}</text>'
    for line in range(chart.lines + 1):
        y = bottom - _PLOT * line / chart.lines
        yield f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        value = f"{chart.step * line:g}{chart.unit}"
        yield f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{escape(value)}</text>'
    yield f'<line class="axis" x1="{_LEFT:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>'
    width = (right - _LEFT) / len(chart.groups)
    for index, group in enumerate(chart.groups):
        x = _LEFT + width * (index + 0.5)
        for row, words in enumerate(group.rsplit(" ", 1)):
            yield f'<text x="{x:.1f}" y="{bottom + 18 + 15 * row:g}" text-anchor="middle">{escape(words)}</text>'
    middle, end = (_LEFT + right) / 2, bottom + 56
    yield f'<text class="label" x="{middle:g}" y="{end:g}" text-anchor="middle">{escape(chart.x_label)}</text>'
    yield (
        f'<text class="label" transform="translate(16 {_TOP + _PLOT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>"
    )


def _columns(chart: PhaseChart) -> Iterator[str]:
    scale, bottom = _PLOT / (chart.step * chart.lines), _TOP + _PLOT
    group_width = (_WIDTH - _RIGHT - _LEFT) / len(chart.groups)
    for index, group in enumerate(chart.groups):
        own = [column for column in chart.columns if column.group == group]
        width = 0.84 * group_width / len(own)
        for place, column in enumerate(own):
            x = _LEFT + group_width * (index + 0.08) + width * place
            y = bottom
            for phase in chart.phases:
                value = column.parts.get(phase, 0.0)
                y -= value * scale
                yield (
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.9 * width:.1f}" height="{value * scale:.1f}" '
                    f'fill="{_color(chart, column)}" opacity="{_shade(chart, phase):.2f}">'
                    f"<title>{escape(f'{group}, {column.name}, {phase}: {value:.3g}{chart.unit}')}</title></rect>"
                )


def _legend(chart: PhaseChart) -> Iterator[str]:
    names = chart.names
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(names), len(chart.phases), 4)
    for index, name in enumerate(names):
        x = _LEFT + width * index
        yield f'<rect x="{x:g}" y="46" width="13" height="13" rx="2" fill="{_SHADES[index % len(_SHADES)]}"/>'
        yield f'<text x="{x + 19:g}" y="57">{escape(name)}</text>'
    ground = _SHADES[0] if names else COLORS[0]
    for index, phase in enumerate(chart.phases):
        x, shade = _LEFT + width * index, _shade(chart, phase)
        yield f'<rect x="{x:g}" y="70" width="13" height="13" rx="2" fill="{ground}" opacity="{shade:.2f}"/>'
        yield f'<text x="{x + 19:g}" y="81">{escape(phase)}</text>'


def _color(chart: PhaseChart, column: Column) -> str:
    return _SHADES[chart.names.index(column.name) % len(_SHADES)] if chart.names else COLORS[0]


def _shade(chart: PhaseChart, phase: str) -> float:
    """Return how dark a part is: the first palest."""
    return 1.0 - 0.6 * (len(chart.phases) - 1 - chart.phases.index(phase)) / max(len(chart.phases) - 1, 1)
