"""A chart is well-formed, self-contained, and puts values where they belong."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from edgeprec.cli.chart import Chart, Series, draw_chart

SVG = "{http://www.w3.org/2000/svg}"


def parse(**changes: Any) -> ElementTree.Element:
    """Return the SVG of a small chart."""
    values: dict[str, Any] = {
        "title": "a < b & c",
        "x_label": "place",
        "y_label": "share",
        "places": ("1", "2", "3"),
        "series": (Series("up", (0.0, 0.5, 1.0)), Series("gap", (0.2, None, 0.4))),
    }
    return ElementTree.fromstring(draw_chart(Chart(**values | changes)))


def dots(svg: ElementTree.Element) -> list[tuple[float, float]]:
    """Return the places of all dots."""
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter(f"{SVG}circle")]


def test_larger_is_higher_and_later_is_further_right() -> None:
    """SVG's y grows downwards; a share of 1 must not."""
    low, middle, high, *_ = dots(parse())
    assert low[1] > middle[1] > high[1]
    assert low[0] < middle[0] < high[0]
    assert middle[1] == pytest.approx((low[1] + high[1]) / 2)


def test_what_was_not_measured_has_no_dot() -> None:
    """A gap is left out, not drawn at 0."""
    assert len(dots(parse())) == 5


def test_texts_are_escaped_and_said() -> None:
    """Title, places, names and exact values are in the file."""
    texts = [element.text for element in parse().iter() if element.text]
    assert "a < b & c" in texts
    assert {"1", "2", "3", "up", "gap", "place", "share"} <= set(texts)
    assert "up: 50.0 %" in texts


def test_columns_stand_on_the_axis() -> None:
    """Their height is their share on the lines' own scale; an empty one is not drawn."""
    svg = parse(columns=(0.5, 0.0, 0.25), columns_name="how many", series=(Series("up", (0.5, 0.0, 0.25)),))
    boxes = [box for box in svg.iter(f"{SVG}rect") if box.attrib.get("class") == "column"]
    tops = [float(box.attrib["y"]) for box in boxes]
    known = dots(svg)
    assert tops == pytest.approx([known[0][1], known[2][1]])
    bottoms = [float(box.attrib["y"]) + float(box.attrib["height"]) for box in boxes]
    assert bottoms == pytest.approx([known[1][1]] * 2, abs=0.2)


def test_nothing_is_fetched() -> None:
    """A picture in a repository shows without a network."""
    text = draw_chart(Chart(title="t", x_label="x", y_label="y", places=("a",), series=(Series("s", (0.5,)),)))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text


@pytest.mark.parametrize("changes", [{"places": ("1", "2")}, {"columns": (0.5,)}])
def test_values_belong_to_places(changes: dict[str, Any]) -> None:
    """A line with another number of values than there are places is a mistake of ours."""
    with pytest.raises(AssertionError, match="over"):
        parse(**changes)


def test_everything_lies_inside() -> None:
    """With many places and names nothing leaves the picture."""
    places = tuple(str(index) for index in range(9))
    svg = parse(places=places, series=tuple(Series(f"line {i}", (i / 5,) * 9) for i in range(6)))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    assert all(0 < x < width and 0 < y < height for x, y in dots(svg))
