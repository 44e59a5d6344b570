"""Graphs by kind of pass: when they are captured, replayed, dropped, and what happens when a capture fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeprec.runtime.torch_graphs import GraphCache


class Recorder:
    """A capture that notes what happens; ``fails`` makes it raise as CUDA does."""

    def __init__(self, fails: bool = False) -> None:
        self.log: list[str] = []
        self.fails = fails

    def __call__(self, body: Callable[[], None]) -> Recorder.Graph:
        """Capture a body."""
        if self.fails:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
        self.log.append("capture")
        return Recorder.Graph(self.log)

    class Graph:
        """Something with ``replay``."""

        def __init__(self, log: list[str]) -> None:
            self.log = log

        def replay(self) -> None:
            """Note it."""
            self.log.append("replay")

    def body(self) -> None:
        """Note an ordinary run."""
        self.log.append("run")


def test_first_run_is_ordinary_second_captures_then_replays() -> None:
    """Compiling is not allowed while capturing, so the first run of a kind does it; kinds are apart."""
    recorder = Recorder()
    graphs = GraphCache(recorder)
    for _ in range(4):
        graphs.run("a", recorder.body)
    assert recorder.log == ["run", "capture", "replay", "replay", "replay"]
    graphs.run("b", recorder.body)
    assert recorder.log[-1] == "run"


def test_without_capture_everything_is_ordinary() -> None:
    """A CPU has no graphs, and says nothing about it."""
    recorder = Recorder()
    graphs = GraphCache(None)
    for _ in range(3):
        graphs.run("a", recorder.body)
    assert recorder.log == ["run"] * 3
    assert graphs.note is None
    assert graphs.report.captured == 0


def test_failed_capture_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The pass runs all the same, no further capture is tried, and the note is one line."""
    recorder = Recorder()
    graphs = GraphCache(recorder)
    for _ in range(2):
        graphs.run("good", recorder.body)
    recorder.fails = True
    for _ in range(3):
        graphs.run("bad", recorder.body)
    graphs.run("good", recorder.body)
    assert recorder.log == ["run", "capture", "replay", *["run"] * 4]
    assert graphs.note is not None
    assert "CUDA graphs are off" in graphs.note
    assert "\n" not in graphs.note
    assert caplog.messages == [graphs.note]


def test_least_recently_used_graph_is_dropped() -> None:
    """Many plans do not fill the memory; a dropped kind is captured again when it comes back."""
    recorder = Recorder()
    graphs = GraphCache(recorder, limit=2)
    for key in "aabbacca":
        graphs.run(key, recorder.body)
    assert graphs.report.dropped == 1
    recorder.log.clear()
    graphs.run("a", recorder.body)
    graphs.run("b", recorder.body)
    assert recorder.log == ["replay", "capture", "replay"]


def test_report_times_captures() -> None:
    """What a switch to a plan that was not seen costs, in milliseconds."""
    recorder = Recorder()
    ticks = iter([0, 4_000_000, 10_000_000, 12_000_000])
    graphs = GraphCache(recorder, clock=lambda: next(ticks))
    for key in "aabb":
        graphs.run(key, recorder.body)
    assert (graphs.report.captured, graphs.report.mean_ms, graphs.report.largest_ms) == (2, 3.0, 4.0)
    graphs.clear()
    graphs.run("a", recorder.body)
    assert recorder.log[-1] == "run"


def test_passes_that_took_longer_are_counted() -> None:
    """The first of a kind and the one that captures; a replay is what the next one will be."""
    recorder = Recorder()
    graphs = GraphCache(recorder)
    counts = []
    for key in ("a", "a", "a", "b", "a", "b", "b"):
        graphs.run(key, recorder.body)
        counts.append(graphs.first_passes)
    assert counts == [1, 2, 2, 3, 3, 4, 4]
