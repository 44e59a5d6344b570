"""What can go wrong around ``edgeprec bench``: full disks, slips in flags, servers on other machines, odd letters."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.cli.bench_output import open_output, shows_bars, to_line
from edgeprec.runtime import benchmark_connection

QUICK = ("-p", "8", "-n", "3", "-r", "1", "--mode", "fp16", "--idle-seconds", "0")
NO_SENSOR = ("--sensor", "none")


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """Return the module of scripted servers."""
    path = Path(__file__).parents[1] / "factories" / "completions_server.py"
    found = spec_from_file_location("edgeprec_factories_completions_server_cli_troubles", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("output", ["jsonl", "json"])
def test_a_full_disk_costs_the_file_alone(pair: Path, invoke: Callable[..., Any], output: str) -> None:
    """Every row is printed, one warning tells when it happened, and the exit code says that the file lacks them."""
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "-o", output, "--save", "/dev/full")
    assert outcome.code == 1
    assert "warning: --save /dev/full cannot be written: No space left on device; results are printed" in outcome.err
    assert "edgeprec: --save /dev/full lacks 2 of 2 results (No space left on device): make room" in outcome.err
    assert outcome.err.count("No space left") == 2
    found = json.loads(outcome.out)["results"] if output == "json" else [*map(json.loads, outcome.out.splitlines())]
    assert [record["test"]["name"] for record in found] == ["pp8", "tg3"]


@pytest.mark.parametrize("output", ["md", "jsonl"])
def test_a_full_disk_behind_standard_output_costs_no_saved_row(
    pair: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str
) -> None:
    """The row that could not be printed is in the file."""

    def write(_text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgeprec.cli.bench_output._writer", lambda *_streams, **_how: write)
    file = tmp_path / "results.jsonl"
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "-o", output, "--save", str(file))
    assert outcome.code == 1
    assert outcome.err.endswith("edgeprec: No space left on device\n")
    assert [json.loads(line)["test"]["name"] for line in file.read_text().splitlines()] == ["pp8"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-npl", "0"), "'0' holds 0, expected 1 or more"),
        (("-npl", "0-4"), "'0-4' holds 0, expected 1 or more"),
        (("-b", "0"), "'0' holds 0, expected 1 or more"),
        (("--idle-seconds", "nan"), "'nan' is not a finite number"),
        (("--idle-seconds", "inf"), "inf is not in the range"),
        (("--idle-seconds", "1e300"), "is not in the range 0.0<=x<=3600.0"),
        (("--against-timeout", "nan"), "'nan' is not a finite number"),
        (("--against-timeout", "1e300"), "is not in the range 0.0<x<=86400.0"),
        (("--temperature", "nan"), "nan"),
        (("--against-model", "m"), "--against-model without --against: give the server's URL, or leave it out"),
        (("--against-timeout", "5"), "--against-timeout without --against"),
        (("--json", "-o", "csv"), "--json and -o csv ask for two formats: leave one of them out"),
        (("--save", "PROMPTS", "--prompts", "PROMPTS"), "is the file that --prompts reads: write it elsewhere"),
        (("--save", "BUNDLE/results.jsonl"), "lies in the bundle"),
        (("--against", "http://me:hunter2@127.0.0.1:9/v1"), "leave the user name and the password out"),
    ],
)
def test_a_slip_in_a_flag_is_one_sentence(
    pair: Path, invoke: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """Exit code 2, before a model is loaded, and nothing that is secret."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once\n")
    given = [one.replace("PROMPTS", str(prompts)).replace("BUNDLE", str(pair)) for one in arguments]
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--quiet", *given)
    assert outcome.code == 2, outcome.err
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""
    assert "hunter2" not in outcome.err
    assert prompts.read_text() == "Once\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hunter2\nhunter2b\n", "holds 2 lines: write the key into it, one line of letters and digits"),
        (b"hunter2\rX-Header: hunter2", "holds 2 lines"),
        (b"hunter2\x00", "holds what no header of HTTP can carry"),
        ("hunter2\u2028\u00e4".encode(), "holds 2 lines"),
        (b"hunter2\xff", "is not UTF-8 at byte 7"),
        (b" \n", "is empty"),
    ],
)
def test_a_key_file_that_cannot_be_used_keeps_its_secret(
    pair: Path, invoke: Callable[..., Any], tmp_path: Path, content: bytes, expected: str
) -> None:
    """What is wrong with it is told, and not what stands in it."""
    file = tmp_path / "key"
    file.write_bytes(content)
    arguments = ("--against", "http://127.0.0.1:9", "--against-key-file", str(file))
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, *arguments, "-vv")
    assert outcome.code == 2
    assert expected in outcome.err
    assert "hunter2" not in outcome.err.replace("hunter2b", "hunter2")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--epsilon", "0.1"), "--epsilon has no effect with --mode fp16: leave one or the other out"),
        (("--draft-length", "3", "--objective", "energy"), "--draft-length and --objective have no effect with --mode"),
        (("--theta-low", "0.5"), "--theta-low has no effect with --mode fp16"),
        (("--top-k", "5"), "--top-k has no effect with --temperature 0"),
        (("--seed", "5"), "--seed has no effect with --temperature 0"),
        (("--ignore-eos",), "--ignore-eos has no effect without --prompts"),
        (("-p", "0", "-b", "4"), "--batch-size has no effect without a prefill: give -p or -pg"),
        (
            ("--mode", "exact", "--drafter", "none", "--max-draft-length", "4"),
            "--max-draft-length has no effect with",
        ),
        (
            ("--mode", "exact", "--draft-length", "2", "--objective", "energy"),
            "--objective has no effect without",
        ),
    ],
)
def test_a_flag_without_effect_is_told_of(
    pair: Path, invoke: Callable[..., Any], arguments: tuple[str, ...], expected: str
) -> None:
    """A slip of the hand looks the same; the measurement goes on."""
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--quiet", *arguments)
    assert outcome.code == 0, outcome.err
    assert f"edgeprec: warning: {expected}" in outcome.err
    assert outcome.err.count("\n") == 1


def test_flags_that_count_are_not_told_of(pair: Path, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Nor those that a file sets for every command."""
    settings = tmp_path / "edgeprec.toml"
    settings.write_text('epsilon = 0.1\n[bench]\nagainst-model = "m"\n')
    arguments = ("--mode", "exact,fp16", "--draft-length", "adaptive,2", "--objective", "energy", "-b", "4")
    outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--quiet", *arguments, "--config", str(settings))
    assert (outcome.code, outcome.err) == (0, "")


def test_flags_of_our_engine_do_not_reach_a_server(pair: Path, invoke: Callable[..., Any], servers: ModuleType) -> None:
    """A row of the server beside ours with two threads is no row with two threads."""
    with servers.CompletionsServer() as server:
        outcome = invoke("bench", str(pair), *QUICK, *NO_SENSOR, "--against", server.url, "--threads", "2", "-b", "4")
    assert outcome.code == 0, outcome.err
    assert "warning: --threads and --batch-size have no effect on the rows of the server" in outcome.err


def test_a_server_elsewhere_has_no_joules_of_ours(
    pair: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, servers: ModuleType
) -> None:
    """Energy, idle power, clocks and the device are this machine's: of another one nothing is known."""
    monkeypatch.setattr(benchmark_connection, "_is_local", lambda _socket: False)
    with servers.CompletionsServer() as server:
        arguments = (*QUICK, "--sensor", "simulated:orin-nano", "--against", server.url)
        outcome = invoke("bench", str(pair), *arguments, "-o", "jsonl")
        table = invoke("bench", str(pair), *arguments)
        required = invoke("bench", str(pair), *arguments, "--require-energy")
    assert outcome.code == 0, outcome.err
    reason = f"the server {server.url} runs on another machine, whose power is not measured here"
    *own, prefill, decode = map(json.loads, outcome.out.splitlines())
    assert {record["meter"]["source"] for record in own} == {"simulated:orin-nano"}
    for record in (prefill, decode):
        assert (record["energy"], record["energy_note"], record["meter"]) == (None, reason, None)
        assert record["idle"] == {"watts": None, "seconds": 0.0, "power_mode": None, "note": reason}
        assert (record["device"]["name"], record["device"]["unknown"]) == (None, {"device": reason})
        assert (record["clocks"]["after_mhz"], record["clocks"]["reasons"]) == ({}, [reason])
        assert record["hottest_c"] == {"before": None, "after": None}
        assert record["server"]["is_local"] is False
        assert record["tokens_per_s"]["mean"] > 0
    assert f"tg3 scripted: energy: {reason}" in table.err
    assert (required.code, required.out) == (5, "")
    assert required.err == f"edgeprec: --require-energy: {reason}\n"


@pytest.mark.parametrize("output", ["md", "csv", "json", "jsonl"])
def test_odd_letters_of_a_server_reach_every_format(
    pair: Path, invoke: Callable[..., Any], servers: ModuleType, tmp_path: Path, output: str
) -> None:
    """A lone surrogate in names or texts is no traceback, and what is saved can be read back."""
    event = b'data: {"choices": [{"text": "a\\ud800", "finish_reason": "stop\\ud800"}]}\n\n'
    models = b'{"data": [{"id": "m\\ud800", "owned_by": "o\\ud800\\u001b[31m"}]}'

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        yield from (event, event, servers.usage(3, 4), b"data: [DONE]\n\n")

    file = tmp_path / "results.jsonl"
    with servers.CompletionsServer(reply, models=models) as server:
        arguments = (*QUICK, *NO_SENSOR, "--against", server.url, "-o", output, "--save", str(file))
        outcome = invoke("bench", str(pair), *arguments)
    assert outcome.code == 0, outcome.err
    *_, last = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert (last["server"]["model"], last["engine"]) == ("m\ud800", "o??[31m")
    assert "\x1b" not in outcome.out


def test_lines_are_for_programs_wherever_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars take standard output over and break lines at the terminal's width: never the lines of these formats."""

    class Terminal(io.StringIO):
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

    terminal, taken_over = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert [shows_bars(name) for name in ("md", "csv", "json", "jsonl")] == [True, False, False, False]
    output = open_output("jsonl", has_energy=False)
    monkeypatch.setattr(sys, "stdout", taken_over)
    output.add({"text": "x" * 500})
    assert json.loads(terminal.getvalue()) == {"text": "x" * 500}
    assert taken_over.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "is_ascii", "line"),
    [("\u00e4", False, '"\u00e4"'), ("\u00e4", True, '"\\u00e4"'), ("\u00e4\ud800", False, '"\\u00e4\\ud800"')],
)
def test_a_line_is_always_utf8(value: str, is_ascii: bool, line: str) -> None:
    """What cannot be encoded is escaped, as JSON allows for every letter."""
    assert to_line({"a": value}, is_ascii=is_ascii) == f'{{"a": {line}}}\n'
