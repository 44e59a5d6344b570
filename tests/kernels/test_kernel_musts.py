"""The verdicts on the kernels' figures, from made-up times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("triton")

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")


@pytest.fixture
def musts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("kernel_timing", "kernel_musts")
    yield [import_module(name) for name in names][-1]
    for name in names:
        sys.modules.pop(name, None)


def test_a_figure_has_its_ratio_range_and_marks(musts: ModuleType) -> None:
    """The range sets one side's slow end against the other's fast end; marks say met or missed, by how much."""
    times = {
        ("cublas fp16", 16, 4096, 4096): musts.Timing(13.6, 13.4, 14.0),
        ("edgeprec int4", 16, 4096, 4096): musts.Timing(6.8, 6.7, 7.0),
    }
    (verdict,) = musts.judge(times)
    assert verdict.ratio == pytest.approx(2.0)
    assert verdict.low == pytest.approx(13.4 / 7.0)
    assert verdict.high == pytest.approx(14.0 / 6.7)
    assert "2.00x (1.91..2.09), must 1.7x met by 18 %, stretch 2.2x MISSED by 9 %" in verdict.line()


def test_figures_without_both_sides_are_left_out(musts: ModuleType) -> None:
    """What was not measured is not judged; 64 rows of FP16 are nobody's figure."""
    ours = musts.Timing(10.0, 10.0, 10.0)
    assert musts.judge({("edgeprec int4", 1, 4096, 4096): ours}) == []
    both = {("edgeprec fp16", 64, 4096, 4096): ours, ("cublas fp16", 64, 4096, 4096): ours}
    assert musts.judge(both) == []


def test_a_summary_names_every_miss_and_else_the_worst(musts: ModuleType) -> None:
    """Of a peer that is never faster one line is enough; where it is, each such line stands."""
    times = {("cublas fp16", rows, 4096, 4096): musts.Timing(10.0, 10.0, 10.0) for rows in (1, 2, 4)}
    times |= {("edgeprec fp16", rows, 4096, 4096): musts.Timing(8.0 + rows, 8.0, 13.0) for rows in (1, 2, 4)}
    times |= {("edgeprec int4", rows, 4096, 4096): musts.Timing(4.0, 4.0, 4.0) for rows in (1, 2)}
    times |= {("tinygemm", rows, 4096, 4096): musts.Timing(4.0 + rows, 4.0, 4.0) for rows in (1, 2)}
    lines = musts.summarize(musts.judge(times))
    assert [line.split("  ")[0] for line in lines[:-1]] == [
        "INT4, 1 rows, 4096x4096",
        "FP16, 4 rows, 4096x4096",
        "INT4 over tinygemm, 1 rows, 4096x4096 1.25x (1.00..1.00), must 1x met by 25 %, stretch 1.4x MISSED by 11 %",
    ]
    assert lines[-1] == "4 of 6 musts met, 2 stretches"
