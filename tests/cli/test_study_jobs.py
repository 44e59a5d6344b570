"""Parts of a study in processes: how many at a time, what a failure and the end of the time leave."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.prompts import PromptKind
from edgeprec.runtime.evaluation_texts import EvaluationText

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
WAITS = "import sys; sys.stdin = open('/dev/zero'); sys.stdout.write('begun'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """Return the modules of jobs and texts."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield import_module("study_jobs"), import_module("study_texts")
    for name in ("study_jobs", "study_texts"):
        sys.modules.pop(name, None)


def python(code: str, *arguments: str) -> list[str]:
    """Return the command that runs ``code``."""
    return [sys.executable, "-c", code, *arguments]


def test_all_are_run_and_failures_are_named(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """What a failed command said last is shown; the commands behind it run nevertheless."""
    jobs, said = scripts[0], []
    commands = {
        "good": python("print('fine')"),
        "bad": python("raise SystemExit('no such bundle')"),
        "mute": python("raise SystemExit(3)"),
        "last": python(f"open({str(tmp_path / 'made')!r}, 'w')"),
    }
    outcome = jobs.run_jobs(commands, jobs=1, deadline=jobs.Deadline(), logs=tmp_path / "logs", say=said.append)
    assert outcome == jobs.Outcome(failed=("bad", "mute"))
    assert (tmp_path / "made").exists()
    assert [line.split(":")[0] for line in said] == ["[1/4] good", "[2/4] bad", "[3/4] mute", "[4/4] last"]
    assert said[1].endswith("exit code 1: no such bundle")
    assert said[2].endswith("exit code 3: it said nothing")
    assert (tmp_path / "logs" / "good.log").read_text() == "fine\n"


def test_no_more_than_asked_run_at_once(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """Two commands that each wait for the other's file end only if they run together; a third begins later."""
    jobs = scripts[0]
    meet = (
        "import pathlib, sys, time; mine, other, third = map(pathlib.Path, sys.argv[1:]); mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "assert not third.exists()"
    )
    a, b, c = (str(tmp_path / name) for name in "abc")
    commands = {"a": python(meet, a, b, c), "b": python(meet, b, a, c), "c": python(f"open({c!r}, 'w')")}
    outcome = jobs.run_jobs(
        {"a": commands["a"], "b": commands["b"]}, jobs=2, deadline=jobs.Deadline.after(60), logs=tmp_path, say=print
    )
    assert outcome == jobs.Outcome()
    for name in (a, b):
        Path(name).unlink()
    outcome = jobs.run_jobs(commands, jobs=2, deadline=jobs.Deadline.after(60), logs=tmp_path, say=print)
    assert outcome == jobs.Outcome()
    assert Path(c).exists()


def test_the_end_of_the_time_stops_what_runs(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """A command that would never end is killed; it and those behind it are left for the next run."""
    jobs = scripts[0]
    began = jobs.Deadline.after(1.0)
    outcome = jobs.run_jobs(
        {"endless": python(WAITS), "waiting": python("pass")}, jobs=1, deadline=began, logs=tmp_path, say=print
    )
    assert outcome == jobs.Outcome(left=("endless", "waiting"))
    assert not (tmp_path / "waiting.log").exists()


def test_no_limit_is_never_over(scripts: tuple[ModuleType, ModuleType]) -> None:
    """Without a limit there is no deadline; a limit of 0 is over at once."""
    jobs = scripts[0]
    assert not jobs.Deadline.after(None).is_over
    assert not jobs.Deadline.after(1e6).is_over
    assert jobs.Deadline.after(0.0).is_over


def test_texts_come_back_as_they_were(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """Kinds, prompts and replies survive the file, which replaces an older one whole."""
    texts = scripts[1]
    written = tuple(EvaluationText(kind=kind, prompt=(1, index), reply=(2, 3)) for index, kind in enumerate(PromptKind))
    path = tmp_path / "deep" / "texts.json"
    texts.store_texts(path, written[:1])
    texts.store_texts(path, written)
    assert texts.load_texts(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["texts.json"]


def test_first_of_each_kind(scripts: tuple[ModuleType, ModuleType]) -> None:
    """So many of each kind, in their order; a kind with fewer gives what it has."""
    kinds = (PromptKind.CODE, PromptKind.PROSE, PromptKind.CODE, PromptKind.CODE)
    texts = [EvaluationText(kind=kind, prompt=(index,), reply=()) for index, kind in enumerate(kinds)]
    chosen = scripts[1].first_of_each_kind(texts, 2)
    assert [text.prompt for text in chosen] == [(0,), (1,), (2,)]
