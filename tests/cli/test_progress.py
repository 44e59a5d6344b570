"""Progress bars: for a person at a terminal, and for nobody else."""

from __future__ import annotations

import io
import sys

import pytest

from edgeprec.cli.eval_progress import evaluation_bar
from edgeprec.cli.progress import progress_bars, working
from edgeprec.export.progress import ProgressEvent


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


EVENTS = [ProgressEvent("quantize", 1, 2, "layer 0"), ProgressEvent("graph", 0, 1), ProgressEvent("quantize", 2, 2)]


@pytest.mark.parametrize(("stream", "is_quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_a_log_or_quiet_gets_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_quiet: bool) -> None:
    """Control sequences in a log file help nobody."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bars(is_quiet=is_quiet) as show, working("waiting", is_quiet=is_quiet):
        for event in EVENTS:
            show(event)
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_bar_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage, count and what is at work."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars(is_quiet=False) as show:
        for event in EVENTS:
            show(event)
    shown = stream.getvalue()
    assert "quantize" in shown
    assert "graph" in shown
    assert "2/2" in shown


def test_a_detail_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor may be named with brackets."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars(is_quiet=False) as show:
        show(ProgressEvent("read", 1, 2, "layer[0]/[bold]"))
    assert "layer[0]/[bold]" in stream.getvalue()


@pytest.mark.parametrize(("stream", "is_quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_an_evaluation_in_a_log_shows_no_bar(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_quiet: bool
) -> None:
    """The same holds for the bar of an evaluation."""
    monkeypatch.setattr(sys, "stderr", stream)
    with evaluation_bar(is_quiet=is_quiet) as show:
        show("modes", 100, 1000)
    assert stream.getvalue() == ""


def test_an_evaluation_has_one_bar_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage at work in words, the share of the whole, and that the time beside it is what is left."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with evaluation_bar(is_quiet=False) as show:
        show("forced", 100, 1000)
        show("more drafts", 420, 1000)
    shown = stream.getvalue()
    assert "drafts, other rules" in shown
    assert "42%" in shown
    assert "left" in shown
