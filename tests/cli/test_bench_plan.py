"""From the flags of ``bench`` to its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli.bench_plan import make_cases, peer_cases, read_prompt_set
from edgeprec.cli.group import load_command
from edgeprec.config import DrafterKind, Mode
from edgeprec.errors import ConfigError
from edgeprec.runtime.benchmark_case import Case, CaseKind


def flags(line: str) -> dict[str, Any]:
    """Return what a command line becomes."""
    with load_command("bench").make_context("bench", ["pair.edgeprec", *line.split()]) as context:
        return context.params


def rows(line: str) -> list[tuple[str, str, object]]:
    """Return name, mode and draft length of every row."""
    cases = make_cases(flags(line))
    return [(case.name, str(case.config.mode), case.config.drafting.draft_length) for case in cases]


def test_without_flags_it_is_llama_benchs_pair_in_two_modes() -> None:
    """Prefill once, decoding plain and exact."""
    assert rows("") == [("pp512", "fp16", None), ("tg128", "fp16", None), ("tg128", "exact", None)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-p 0 --mode int4", [("tg128", "int4", None)]),
        ("-n 0", [("pp512", "fp16", None)]),
        ("-p 64,128 -n 0", [("pp64", "fp16", None), ("pp128", "fp16", None)]),
        ("-p 64 -n 0 -b 8,16", [("pp64 b8", "fp16", None), ("pp64 b16", "fp16", None)]),
        ("-p 0 -n 8-16*2 --mode fp16", [("tg8", "fp16", None), ("tg16", "fp16", None)]),
        ("-p 0 -n 8 -b 16 --mode fp16", [("tg8", "fp16", None)]),
        (
            "-p 0 -n 8 --mode exact,fp16,bounded --draft-length adaptive,3",
            [
                ("tg8", "exact", None),
                ("tg8", "exact", 3),
                ("tg8", "fp16", None),
                ("tg8", "bounded", None),
                ("tg8", "bounded", 3),
            ],
        ),
        (
            "-p 4 -n 8 -d 0,32 --mode fp16",
            [("pp4", "fp16", None), ("tg8", "fp16", None), ("pp4 @ d32", "fp16", None), ("tg8 @ d32", "fp16", None)],
        ),
        ("-p 0 -n 0 -pg 4,8 --mode int4", [("pp4+tg8", "int4", None)]),
        ("-p 0 -n 8 -npl 1,4 --mode fp16", [("tg8", "fp16", None), ("tg8 x4", "fp16", None)]),
        ("--prompts small -n 8 --mode fp16", [("small tg8", "fp16", None)]),
        ("--prompts large -p 16 -n 8 --mode int4", [("pp16", "fp16", None), ("large tg8", "int4", None)]),
    ],
)
def test_lists_multiply_where_they_matter(line: str, expected: list[tuple[str, str, object]]) -> None:
    """Modes and draft lengths concern decoding, rows of a pass concern prefill: nothing is measured twice."""
    assert rows(line) == expected


def test_other_flags_hold_for_every_row() -> None:
    """Sampling, thresholds and the drafter are those of run; prefill drafts nothing."""
    prefill, decode = make_cases(flags("--mode exact --temperature 0.5 --seed 3 --drafter ngram --theta-low 0.25"))
    assert decode.config.sampling.temperature == 0.5
    assert decode.config.drafting.drafter is DrafterKind.NGRAM
    assert decode.config.controller.theta_low_bits == 0.25
    assert (prefill.config.mode, prefill.config.drafting.drafter) == (Mode.FP16, DrafterKind.NONE)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-p 0 -n 0", "there is nothing to measure: -p and -n are both 0"),
        ("--prompts small -n 0", "there is nothing to measure"),
        ("--prompts small -d 16", "-d is for synthetic tests, --prompts has real ones"),
        ("--prompts absent.txt", "--prompts is 'absent.txt': there is no such file; small and large"),
        ("--draft-length 16 --mode exact", "draft_length is 16, expected adaptive or 0 to 15"),
        ("--temperature 99", "temperature is 99.0, expected 0 to 10"),
    ],
)
def test_flags_that_make_no_sense_are_refused(line: str, expected: str) -> None:
    """Before a model is loaded, in one sentence."""
    with pytest.raises(ConfigError, match=expected):
        make_cases(flags(line))


def test_a_server_runs_each_test_once() -> None:
    """It has no modes: the rows are those of the tests alone."""
    line = "-p 16 -n 8,9 -b 2,4 -pg 3,4 --mode fp16,exact,int4 --draft-length 1-3"
    assert [case.name for case in peer_cases(flags(line))] == ["pp16", "pp3+tg4", "tg8", "tg9"]


@pytest.mark.parametrize(("name", "count"), [("small", 27), ("large", 200)])
def test_shipped_sets_have_four_tasks(name: str, count: int) -> None:
    """27 prompts as in the research, 200 for what is published."""
    prompts = read_prompt_set(name)
    assert len(prompts) == count
    assert {prompt.kind for prompt in prompts} == {"prose", "question", "code", "passage"}


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    """Empty lines are none, and the row is named after the file."""
    file = tmp_path / "mine.txt"
    file.write_text("Once\n\nTwice\n")
    cases = make_cases(flags(f"--prompts {file} -n 4 --mode fp16"))
    assert [(case.name, case.kind) for case in cases] == [("mine.txt tg4", CaseKind.PROMPTS)]
    assert [(prompt.kind, prompt.text) for prompt in cases[0].prompts] == [("file", "Once"), ("file", "Twice")]


def test_a_line_of_prompts_ends_where_an_editor_ends_one(tmp_path: Path) -> None:
    """Separators that Unicode knows beside newlines are text, in a plain file and inside JSON."""
    plain, lines = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    plain.write_bytes("a\u2028b\x0cc\r\nd\re\n".encode())
    lines.write_text('{"text": "a\u2028b"}\n')
    assert [prompt.text for prompt in read_prompt_set(str(plain))] == ["a\u2028b\x0cc", "d", "e"]
    assert [prompt.text for prompt in read_prompt_set(str(lines))] == ["a\u2028b"]


def test_a_jsonl_file_has_tasks_and_ids(tmp_path: Path) -> None:
    """So that one's own prompts give one's own table by task."""
    file = tmp_path / "mine.jsonl"
    lines: list[dict[str, str]] = [{"text": "def f(", "kind": "code", "id": "c1"}, {"text": "two\nlines"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    prompts = read_prompt_set(str(file))
    assert [(prompt.id, prompt.kind) for prompt in prompts] == [("c1", "code"), ("line-2", "file")]
    assert prompts[1].text == "two\nlines"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty: write one prompt a line"),
        ("{", "line 1 is no JSON"),
        ("[" * 100_000, "line 1 is no JSON"),
        ('{"text": "\\ud800"}', "line 1 has a text that is not valid UTF-8"),
        ('{"text": "a"}\n[1]', "line 2 has no prompt"),
        ('{"text": ""}', "line 1 has no prompt"),
        ('{"prompt": "a"}', 'line 1 has no prompt: write {"text"'),
    ],
)
def test_a_bad_file_of_prompts_names_its_line(tmp_path: Path, content: str, expected: str) -> None:
    """Where to look, and what to write there."""
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_prompt_set(str(file))
    assert expected in str(caught.value)


def test_cases_know_the_room_they_take() -> None:
    """The context is made large enough for them where none was asked for."""
    assert [case.context_tokens for case in make_cases(flags("-p 64 -n 8 -d 100 --mode fp16"))] == [165, 110]
    assert Case(kind=CaseKind.DECODE, config=make_cases(flags(""))[0].config, new_tokens=4).context_tokens == 6
