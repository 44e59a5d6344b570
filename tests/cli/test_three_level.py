"""``--three-level`` on the command line: what it prints, where it is refused, and that the tokens stay FP16's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.cli.report import Report, ReportRun, render_report
from edgeprec.cli.stats import stats_line
from edgeprec.runtime.reply import LevelStats

LEVELS = LevelStats(
    rounds=10,
    int4_passes=24,
    model_drafted=60,
    model_accepted=45,
    model_acceptance_rate=0.75,
    int4_drafted=70,
    int4_accepted=63,
    int4_acceptance_rate=0.9,
    direct_rounds=0,
    direct_drafted=0,
    direct_accepted=0,
)
TEXT = ("-p", "The tide", "-n", "24", "--ignore-eos", "--json")
QUIET_MACHINE = ("--sensor", "none", "--threads", "1", "--context", "128")


@pytest.fixture
def reply(script: SimpleNamespace) -> Any:
    """Return a reply in three levels."""
    events = [script.event(index) for index in range(13)]
    return script.reply(events, stats=script.stats(13, drafter="model", three_level=LEVELS))


def test_the_line_shows_both_acceptances(reply: Any) -> None:
    """FP16's and the INT4 target's, so that a bad draft model and a bad INT4 variant are told apart."""
    line = stats_line(reply)
    assert "exact, drafts by model through INT4" in line
    assert "67% of 12 drafted accepted" in line
    assert "INT4 accepted 75% of 60 from the draft model" in line
    assert "two levels" not in line


def test_the_line_says_how_often_two_levels_ran(script: SimpleNamespace, reply: Any) -> None:
    """Where FP16 checked the draft model directly, the line has the rounds."""
    changed = replace(reply, stats=replace(reply.stats, three_level=replace(LEVELS, direct_rounds=30)))
    assert "30 of 40 rounds in two levels" in stats_line(changed)


def test_two_levels_say_nothing_of_a_third(script: SimpleNamespace) -> None:
    """A reply without the flag reads as before."""
    line = stats_line(script.reply([script.event(index) for index in range(13)]))
    assert "through INT4" not in line
    assert "from the draft model" not in line


def test_a_report_has_a_row_for_every_level(reply: Any) -> None:
    """The page has the numbers of the line."""
    run = ReportRun(name="run", prompt="a", reply=reply, events=reply.events, rounds=(), thresholds=(0.5, 2.5))
    page = render_report(Report(title="pair", facts=[], num_layers=6, runs=[run], notes=()))
    for text in ("INT4 target accepted", "FP16 accepted of INT4", "rounds in three levels"):
        assert text in page


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_run_gives_fp16s_tokens(tiny_pair: Path, invoke: Callable[..., Any], engine: str) -> None:
    """From the command line, on both engines, with the levels in the JSON."""
    flags = (str(tiny_pair), *TEXT, *QUIET_MACHINE, "--engine", engine, "--provider", "cpu")
    plain = json.loads(invoke("run", *flags, "--mode", "fp16").out)
    for extra in (("--draft-length", "4"), ()):
        found = json.loads(invoke("run", *flags, "--three-level", *extra).out)
        assert found["tokens"] == plain["tokens"]
        assert found["stats"]["three_level"] is not None
        assert found["stats"]["drafter"] == "model"
    assert plain["stats"]["three_level"] is None


@pytest.mark.parametrize("command", ["run", "certify"])
def test_without_a_draft_model_it_is_refused(pair: Path, invoke: Callable[..., Any], command: str) -> None:
    """Exit code 2 and one sentence that says what to do."""
    prompt = ("-p", "a") if command == "run" else ()
    outcome = invoke(command, str(pair), *prompt, "--three-level", "--sensor", "none")
    assert outcome.code == 2
    assert "three-level drafting needs a draft model and this bundle has none: export it with --draft" in outcome.err
    assert outcome.err.count("\n") == 1
