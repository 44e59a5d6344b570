"""Pictures of a sweep: one file each, lines where there are two batches, phases in percent of FP16's joules."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

Load = Callable[[str], ModuleType]
SVG = "{http://www.w3.org/2000/svg}"


def record(batch: int, mode: str, *, rate: float, joules: float, **changes: Any) -> dict[str, Any]:
    """Return the result of one way at one batch."""
    values: dict[str, Any] = {
        "schema": "edgeprec.bench",
        "schema_version": 1,
        "engine": "torch",
        "engine_device": "cuda:0",
        "mode": mode,
        "drafter": None,
        "draft_length": None,
        "three_level": None,
        "model": {"name": "m"},
        "device": {"gpus": ["GPU <1>"]},
        "test": {"kind": "prompts", "prompt_set": "test", "new_tokens": 128, "sequences": batch},
        "batch": {"sequences": batch},
        "tokens_per_s": {"mean": rate, "stdev": rate / 10, "count": 3},
        "energy": {
            "joules_per_token": {"mean": joules, "stdev": None, "count": 1},
            "joules": 100 * joules,
            "tokens": 100,
            "by_phase": {"prefill": 20 * joules, "decode": 80 * joules, "idle": None},
        },
    }
    return values | changes


def sweep() -> list[dict[str, Any]]:
    """Return a way that is faster at first, a peer, and a way of one batch."""
    drafts: dict[str, Any] = {"drafter": "model", "draft_length": 5}
    found = [record(b, "fp16", rate=100.0 * b, joules=2.0 / b) for b in (1, 8, 64)]
    found += [record(b, "exact", rate=150.0 * b**0.8, joules=1.0 / b**0.8, **drafts) for b in (1, 8, 64)]
    found += [record(b, "fp16", rate=50.0 * b, joules=3.0 / b, engine="vllm 0.0") for b in (1, 8)]
    return [*found, record(8, "int4", rate=300.0, joules=0.1)]


def texts(picture: str) -> list[str]:
    """Return all words of a picture, which must be well-formed."""
    return [text for element in ElementTree.fromstring(picture).iter(f"{SVG}text") if (text := element.text)]


def test_lines_of_every_way_of_two_batches(load_script: Load) -> None:
    """Names and batches stand at the axes; a peer is dashed; a way of one batch is no line."""
    pictures = load_script("draw_batches").draw(sweep(), [], ways=None)
    assert sorted(pictures) == ["batch-joules.svg", "batch-phases.svg", "batch-speed.svg"]
    words = texts(pictures["batch-speed.svg"])
    assert words[0] == "Decoding speed by batch, GPU <1>"
    assert words[-3:] == ["fp16", "draft K=5", "vllm 0.0: fp16"]
    assert [word for word in words if word in ("1", "8", "64")] == ["1", "8", "64"]
    lines = [e for e in ElementTree.fromstring(pictures["batch-joules.svg"]).iter(f"{SVG}path") if "L" in e.attrib["d"]]
    assert [e.get("stroke-dasharray") for e in lines] == [None, None, "7 4"]


def test_lines_go_the_right_way(load_script: Load) -> None:
    """More tokens a second is higher up, equal ratios are equal distances, and a deviation is a whisker."""
    picture = load_script("draw_batches").draw(sweep(), [], ways=["fp16"])["batch-speed.svg"]
    (line,) = (e.attrib["d"] for e in ElementTree.fromstring(picture).iter(f"{SVG}path") if "L" in e.attrib["d"])
    points = [tuple(map(float, place.split())) for place in re.split("[ML]", line)[1:]]
    (x1, y1), (x8, y8), (x64, y64) = points
    assert x8 - x1 == pytest.approx(x64 - x8, abs=0.2)
    assert y1 - y8 == pytest.approx(y8 - y64, abs=0.2)
    assert y1 > y8 > 0.0
    whiskers = [e for e in ElementTree.fromstring(picture).iter(f"{SVG}line") if e.get("class") is None]
    assert len(whiskers) == 3


def test_phases_in_percent_of_fp16(load_script: Load) -> None:
    """A column's parts add up to its joules by FP16's of the same batch."""
    picture = load_script("draw_batches").draw(sweep(), [], ways=None)["batch-phases.svg"]
    titles = [e.text or "" for e in ElementTree.fromstring(picture).iter(f"{SVG}title")]
    assert "1, fp16, prefill: 20 %" in titles
    assert "1, fp16, decode: 80 %" in titles
    assert "1, draft K=5, decode: 40 %" in titles
    assert not any("int4, prefill: nan" in title for title in titles)


def test_phases_of_one_sequence(load_script: Load) -> None:
    """Replies of the decoding benchmark give joules a token of each way; one that was not measured counts nowhere."""
    phases = {"prefill": 10.0, "draft": 30.0, "verify": 60.0, "idle": None}
    reply = {"type": "reply", "way": "three-level K=5", "tokens": 50, "joules": 100.0, "joules_by_phase": phases}
    unmeasured = reply | {"joules": None, "joules_by_phase": {}}
    pictures = load_script("draw_batches").draw([], [reply, reply, unmeasured], ways=None)
    assert list(pictures) == ["single-phases.svg"]
    titles = [e.text for e in ElementTree.fromstring(pictures["single-phases.svg"]).iter(f"{SVG}title")]
    assert titles == [
        f"3 levels K=5, 3 levels K=5, {p}: {v:g}" for p, v in [("prefill", 0.2), ("draft", 0.6), ("verify", 1.2)]
    ]


def test_ticks_are_round(load_script: Load) -> None:
    """1, 2 and 5, over any span."""
    ticks = load_script("log_chart").ticks
    assert ticks(0.04, 1.2) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1.0])
    assert ticks(300.0, 9000.0) == [500.0, 1000.0, 2000.0, 5000.0]


@pytest.mark.parametrize(("low", "high", "expected"), [(2.1, 4.9, [3.0, 4.0]), (3.2, 3.6, [3.2, 3.6])])
def test_no_axis_is_without_numbers(load_script: Load, low: float, high: float, expected: list[float]) -> None:
    """A span with fewer than two of those has all whole multiples, or its ends: one can always read a value."""
    assert load_script("log_chart").ticks(low, high) == expected


def test_whiskers_are_not_cut_off(load_script: Load) -> None:
    """A deviation larger than the room around the values is drawn in full, on the same scale as the points."""
    module = load_script("log_chart")
    wide = module.LogSeries("a", [module.Point(1.0, 100.0, 60.0), module.Point(2.0, 100.0)])
    chart = module.LogChart(title="t", x_label="x", y_label="y", series=[wide])
    low, high = chart.limits
    assert low < 40.0
    assert high > 160.0
    picture = ElementTree.fromstring(module.draw_log_chart(chart))
    (whisker,) = [e for e in picture.iter(f"{SVG}line") if e.get("class") is None]
    assert [float(whisker.attrib[end]) for end in ("y1", "y2")] == pytest.approx(
        [chart.level(40.0), chart.level(160.0)], abs=0.1
    )


def test_command(load_script: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in, pictures out; the later of two results of the same counts, and a file without results is refused."""
    module = load_script("draw_batches")
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text("\n".join(json.dumps(one) for one in sweep()))
    new.write_text(json.dumps(record(1, "fp16", rate=123.0, joules=2.0)))
    monkeypatch.setattr(sys, "argv", ["draw_batches.py", str(old), str(new), "-o", str(tmp_path / "images")])
    module.main()
    drawn = (tmp_path / "images" / "batch-speed.svg").read_text()
    assert "fp16, 1: 123" in drawn
    assert "fp16, 1: 100" not in drawn
    old.write_text("")
    monkeypatch.setattr(sys, "argv", ["draw_batches.py", str(old), "-o", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="nothing to draw"):
        module.main()
