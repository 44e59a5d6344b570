"""The HTML report: one file that stands alone, with the truth of the run in it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.cli.report import Report, ReportRun, render_report
from edgeprec.runtime.reply import EnergyStats, Reply

VOID = {"meta", "line", "rect", "circle", "path", "br", "img"}


def run_of(script: SimpleNamespace, *, baseline: Reply | None = None, **stats: Any) -> ReportRun:
    """Return a scripted run of twelve tokens."""
    events = [script.event(index) for index in range(12)]
    reply = script.reply(events)
    reply = replace(reply, stats=replace(reply.stats, **stats))
    rounds = [script.round(index) for index in range(4)]
    return ReportRun(
        name="A run",
        prompt="Why?",
        reply=reply,
        events=events,
        rounds=rounds,
        thresholds=(0.5, 2.0),
        baseline=baseline,
    )


def page_of(*runs: ReportRun, **changes: Any) -> str:
    """Render a report of ``runs``."""
    settings: dict[str, Any] = {"title": "pair", "facts": [("engine", "onnxruntime")]}
    return render_report(Report(num_layers=6, runs=runs, **{**settings, **changes}))


def slower(reply: Reply, *, tokens: tuple[int, ...] | None = None) -> Reply:
    """Return an FP16 baseline at half the speed."""
    speed = replace(reply.stats, tokens_per_s=39.2, decode_s=reply.stats.decode_s * 2)
    return replace(reply, stats=speed, tokens=reply.tokens if tokens is None else tokens)


class TagChecker(HTMLParser):
    """Follows opening and closing tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember a tag that must be closed."""
        if tag not in VOID or tag in {"rect", "circle"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself leaves nothing open."""

    def handle_endtag(self, tag: str) -> None:
        """Check the pair."""
        assert self.open.pop() == tag


def test_the_page_is_well_formed(script: SimpleNamespace) -> None:
    """Every tag that is opened is closed in order."""
    checker = TagChecker()
    checker.feed(page_of(run_of(script)).replace("<!doctype html>", ""))
    assert checker.open == []


def test_nothing_is_fetched_from_elsewhere(script: SimpleNamespace) -> None:
    """The page works from a memory stick, and tells nobody that it was opened."""
    page = page_of(run_of(script))
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", page)


def test_text_of_the_model_cannot_become_markup(script: SimpleNamespace) -> None:
    """Prompt and reply are data."""
    run = replace(run_of(script), prompt="<script>alert(1)</script>")
    run = replace(run, events=[script.event(0, text="<img onerror=x>")])
    page = page_of(run)
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_the_statistics_are_in_the_table(script: SimpleNamespace) -> None:
    """What the JSON says, the page says."""
    page = page_of(run_of(script))
    for text in ("78.4", "67%", "6 of 9 drafted", "61%", "9.40", "energy not measured: no sensor on this machine"):
        assert text in page, text


def test_joules_stand_with_source_and_uncertainty(script: SimpleNamespace) -> None:
    """A figure of energy without its source is worth nothing."""
    energy = EnergyStats(
        joules=4.2,
        joules_per_token=0.35,
        by_phase={"draft": 1.5, "verify": None},
        source="nvml",
        rail="gpu0",
        is_total=False,
        coverage=0.98,
        plus_minus_joules=0.1,
    )
    page = page_of(run_of(script, energy=energy, energy_note=None))
    assert "0.35" in page
    assert "4.2 J ± 0.1, 0.35 J/token (nvml gpu0, part of the device only)" in page
    assert "energy, draft" in page
    assert "not measured" in page


def test_the_headline_says_same_tokens_and_speed(script: SimpleNamespace) -> None:
    """The two things a reader wants to know stand at the top."""
    run = run_of(script)
    page = page_of(replace(run, baseline=slower(run.reply)))
    assert "The same 12 tokens as plain FP16, at 2.00 times its speed." in page
    assert "all 12 tokens are FP16&#39;s" in page


def test_a_difference_is_not_hidden(script: SimpleNamespace) -> None:
    """Where a token differs the page names its index."""
    run = run_of(script)
    tokens = (*run.reply.tokens[:5], 1, *run.reply.tokens[6:])
    page = page_of(replace(run, baseline=slower(run.reply, tokens=tokens)))
    assert "1 of 1 replies differ from plain FP16" in page
    assert "differs from FP16 from token 5 on" in page


def test_fallbacks_are_shown(script: SimpleNamespace) -> None:
    """What did not run as asked is said in the result."""
    assert "speculation is off: it does not pay" in page_of(
        run_of(script, fallbacks=("speculation is off: it does not pay",))
    )


@pytest.mark.parametrize("count", [0, 1])
def test_a_reply_of_hardly_a_token_has_a_page(script: SimpleNamespace, count: int) -> None:
    """An interrupt before the first round still leaves a report."""
    events = [script.event(index) for index in range(count)]
    run = ReportRun(name="A run", prompt="Why?", reply=script.reply(events), events=events, rounds=[])
    assert "<svg" in page_of(run)
