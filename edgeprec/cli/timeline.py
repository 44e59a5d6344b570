"""The geometry of a report's picture: entropy, gear, layers in INT4 and drafts of every token, on one axis of tokens.

Nothing is drawn here: the values go into the SVG of ``report_timeline.html``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeprec.cli.layer_map import layer_blocks
from edgeprec.runtime.reply import RoundRecord, TokenEvent

__all__ = ["Box", "Dot", "Line", "Tick", "Timeline", "draw_timeline"]

_LEFT, _RIGHT, _MIN_WIDTH = 120.0, 78.0, 1052.0
_OUT_OF_SIGHT = 1.5  # thresholds this many times above the highest entropy do not stretch the scale
_MIN_STEP, _MAX_STEP = 4.0, 26.0
_ENTROPY_TOP, _ENTROPY_HEIGHT = 16.0, 168.0
_GEAR_TOP, _GEAR_HEIGHT = 200.0, 12.0
_LAYERS_TOP, _LAYERS_HEIGHT = 228.0, 93.0
_DRAFTS_TOP, _DRAFTS_HEIGHT = 337.0, 44.0
_AXIS_TOP, _HEIGHT = 395.0, 419.0


@dataclass(frozen=True, slots=True)
class Dot:
    """One token's entropy."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a class for its colour."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A threshold across the picture."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A number on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything the SVG needs, in its user units."""

    width: float
    height: float
    left: float
    right: float
    axis_y: float
    dot_radius: float
    entropy_top: float
    entropy_bottom: float
    entropy_path: str
    entropy_area: str
    smoothed_path: str
    band: Box | None
    thresholds: tuple[Line, ...]
    dots: tuple[Dot, ...]
    gears: tuple[Box, ...]
    layers: tuple[Box, ...]
    drafts: tuple[Box, ...]
    lanes: tuple[Box, ...]
    labels: tuple[Tick, ...]
    bits: tuple[Tick, ...]
    rows: tuple[Tick, ...]
    tokens: tuple[Tick, ...]


def draw_timeline(
    events: Sequence[TokenEvent],
    rounds: Sequence[RoundRecord],
    *,
    num_layers: int,
    thresholds: tuple[float, float] | None,
) -> Timeline:
    """Lay out one generation. ``thresholds`` are theta_low and theta_high in bits."""
    scale = _Scale(events, thresholds)
    points = [(scale.center(index), scale.bits_y(event.entropy_bits)) for index, event in enumerate(events)]
    line = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
    bottom = _ENTROPY_TOP + _ENTROPY_HEIGHT
    area = f"{line}L{points[-1][0]:.1f} {bottom:.1f}L{points[0][0]:.1f} {bottom:.1f}Z" if points else ""
    spans = tuple(_round_spans(rounds, len(events)))
    return Timeline(
        width=scale.width,
        height=_HEIGHT,
        left=_LEFT,
        right=scale.left_of(len(events)),
        axis_y=_AXIS_TOP,
        dot_radius=round(min(max(scale.step * 0.3, 1.6), 4.0), 1),
        entropy_top=_ENTROPY_TOP,
        entropy_bottom=bottom,
        entropy_path=line,
        entropy_area=area,
        smoothed_path=_smoothed(spans, scale),
        band=_band(thresholds, scale, len(events)),
        thresholds=_threshold_lines(thresholds, scale),
        dots=tuple(
            Dot(x, y, event.source.value, describe(event)) for (x, y), event in zip(points, events, strict=True)
        ),
        gears=tuple(_gears(events, scale)),
        layers=tuple(_layers(events, rounds, num_layers, scale)),
        drafts=tuple(_drafts(spans, scale)),
        lanes=tuple(
            Box(_LEFT, top, scale.left_of(len(events)) - _LEFT, height, "lane", "")
            for top, height in ((_LAYERS_TOP, _LAYERS_HEIGHT), (_DRAFTS_TOP, _DRAFTS_HEIGHT))
        ),
        labels=(
            Tick(_ENTROPY_TOP + _ENTROPY_HEIGHT / 2 + 4, "entropy, bits"),
            Tick(_GEAR_TOP + _GEAR_HEIGHT - 2, "gear"),
            Tick(_LAYERS_TOP + _LAYERS_HEIGHT / 2 + 4, "in INT4"),
            Tick(_DRAFTS_TOP + _DRAFTS_HEIGHT / 2 + 4, "drafted"),
        ),
        rows=(Tick(_LAYERS_TOP + 4, "head"), Tick(_LAYERS_TOP + _LAYERS_HEIGHT - 4, "layer 0")),
        bits=tuple(Tick(scale.bits_y(value), f"{value:g}") for value in scale.bit_ticks()),
        tokens=tuple(Tick(scale.center(index), str(index)) for index in range(0, len(events), scale.token_step)),
    )


def describe(event: TokenEvent) -> str:
    """Return one token's facts in words."""
    words = {"draft": "accepted draft", "target": "FP16", "unverified": "not verified"}[event.source.value]
    return f"token {event.index}: {event.text!r}, {event.entropy_bits:.2f} bits, {words}, gear {event.gear}"


class _Scale:
    """From token numbers and bits to user units."""

    def __init__(self, events: Sequence[TokenEvent], thresholds: tuple[float, float] | None) -> None:
        count = max(len(events), 1)
        self.step = min(max((_MIN_WIDTH - _LEFT - _RIGHT) / count, _MIN_STEP), _MAX_STEP)
        self.width = max(_MIN_WIDTH, _LEFT + _RIGHT + self.step * count)
        highest = max([event.entropy_bits for event in events if math.isfinite(event.entropy_bits)], default=1.0)
        near = [bits for bits in thresholds or () if bits <= highest * _OUT_OF_SIGHT]
        self.max_bits = math.ceil(max(highest, 1.0, *near) * 1.02)
        self.token_step = next((step for step in (5, 10, 20, 50, 100, 200, 500) if step * self.step >= 48), 1000)

    def left_of(self, index: float) -> float:
        return _LEFT + index * self.step

    def center(self, index: float) -> float:
        return self.left_of(index + 0.5)

    def bits_y(self, bits: float) -> float:
        inside = min(max(bits, 0.0), self.max_bits) if math.isfinite(bits) else 0.0
        return _ENTROPY_TOP + _ENTROPY_HEIGHT * (1 - inside / self.max_bits)

    def bit_ticks(self) -> range:
        return range(0, self.max_bits + 1, 1 if self.max_bits <= 6 else 2 if self.max_bits <= 12 else 4)


@dataclass(frozen=True, slots=True)
class _Span:
    """The tokens [begin, end) that one round emitted."""

    record: RoundRecord
    begin: int
    end: int


def _round_spans(rounds: Sequence[RoundRecord], count: int) -> Iterator[_Span]:
    """The first token is the prefill's; each round's tokens follow, those past the end left out."""
    begin = 1
    for record in rounds:
        end = min(begin + record.emitted, count)
        if end > begin:
            yield _Span(record, begin, end)
        begin = end


def _smoothed(spans: Sequence[_Span], scale: _Scale) -> str:
    """A level for each round, not joined where a round had none."""
    return "".join(
        f"M{scale.left_of(span.begin):.1f} {scale.bits_y(bits):.1f}H{scale.left_of(span.end):.1f}"
        for span in spans
        if (bits := span.record.smoothed_entropy_bits) is not None
    )


def _band(thresholds: tuple[float, float] | None, scale: _Scale, count: int) -> Box | None:
    if thresholds is None:
        return None
    low, high = (scale.bits_y(value) for value in thresholds)
    return Box(_LEFT, high, scale.left_of(count) - _LEFT, low - high, "band", "between the thresholds the gear is kept")


def _threshold_lines(thresholds: tuple[float, float] | None, scale: _Scale) -> tuple[Line, ...]:
    if thresholds is None:
        return ()
    named = zip(("low", "high"), thresholds, strict=True)
    return tuple(
        Line(scale.bits_y(bits), f"θ {name} {bits:.3g}{' ↑' if bits > scale.max_bits else ''}") for name, bits in named
    )


def _gears(events: Sequence[TokenEvent], scale: _Scale) -> Iterator[Box]:
    """One box for each run of tokens in the same gear."""
    begin = 0
    for index in range(1, len(events) + 1):
        if index == len(events) or events[index].gear is not events[begin].gear:
            gear = events[begin].gear.value
            x, width = scale.left_of(begin), (index - begin) * scale.step
            yield Box(x, _GEAR_TOP, width, _GEAR_HEIGHT, gear, f"gear {gear}, tokens {begin} to {index - 1}")
            begin = index


def _layers(
    events: Sequence[TokenEvent], rounds: Sequence[RoundRecord], num_layers: int, scale: _Scale
) -> Iterator[Box]:
    """One box for each block of the map: layer 0 at the bottom, the head on top."""
    row = _LAYERS_HEIGHT / (num_layers + 1)
    for block in layer_blocks(events, rounds, num_layers=num_layers):
        x, width = scale.left_of(block.begin), (block.end - block.begin) * scale.step
        y = _LAYERS_TOP + _LAYERS_HEIGHT - block.high * row
        yield Box(x, y, width, (block.high - block.low) * row, block.kind, block.title)


def _drafts(spans: Sequence[_Span], scale: _Scale) -> Iterator[Box]:
    """A column for each round: accepted drafts from the bottom, rejected ones above."""
    longest = max((len(span.record.drafted) for span in spans), default=1) or 1
    unit = _DRAFTS_HEIGHT / longest
    for span in spans:
        drafted, accepted = len(span.record.drafted), span.record.accepted
        x, width = scale.left_of(span.begin) + 0.5, (span.end - span.begin) * scale.step - 1
        title = f"round {span.record.round}: {accepted} of {drafted} accepted, stopped by {span.record.stop_reason}"
        bottom = _DRAFTS_TOP + _DRAFTS_HEIGHT
        if accepted:
            yield Box(x, bottom - accepted * unit, width, accepted * unit, "accepted", title)
        if drafted > accepted:
            yield Box(x, bottom - drafted * unit, width, (drafted - accepted) * unit, "rejected", title)
