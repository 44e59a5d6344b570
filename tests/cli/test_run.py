"""``edgeprec run``: text out, statistics beside it, files when asked, and a clean end on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeprec.config import Mode
from edgeprec.errors import ConfigError

RUN = ("run", "pair.edgeprec")


def test_text_goes_to_standard_output_and_statistics_to_standard_error(
    fake_api: Any, invoke: Callable[..., Any]
) -> None:
    """A pipe gets the text and nothing else."""
    outcome = invoke(*RUN, "-p", "Why?", "-n", "4")
    assert outcome.code == 0
    assert outcome.out == " The tide comes in\n"
    assert "4 tokens · 78.4 tokens/s · exact, drafts by self" in outcome.err
    assert "energy not measured: no sensor on this machine" in outcome.err
    assert fake_api.session.is_closed


def test_quiet_leaves_the_statistics_out(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Scripts that want the text alone get it."""
    outcome = invoke(*RUN, "-p", "Why?", "-n", "4", "--quiet")
    assert (outcome.out, outcome.err) == (" The tide comes in\n", "")


def test_json_is_one_object_as_the_contract_has_it(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Programs read the reply from one line."""
    outcome = invoke(*RUN, "-p", "Why?", "-n", "4", "--json", "--mode", "fp16")
    assert outcome.out.count("\n") == 1
    reply = json.loads(outcome.out)
    assert set(reply) == {"text", "tokens", "token_sha256", "finish_reason", "mode", "stats"}
    assert reply["tokens"] == [1000, 1001, 1002, 1003]
    assert reply["mode"] == "fp16"
    assert reply["stats"]["energy"] is None
    assert reply["stats"]["energy_note"] == "no sensor on this machine"


def test_flags_reach_the_session(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """What was asked for is what is run."""
    invoke(*RUN, "-p", "Why?", "--chat", "--context", "256", "--threads", "2", "--sensor", "none", "--mode", "gated")
    path, settings = fake_api.loads[0]
    assert path == Path("pair.edgeprec")
    assert settings == {"engine": "auto", "context_tokens": 256, "threads": 2, "sensor": "none", "sequences": 1}
    prompt, config, how = fake_api.session.asked[0]
    assert (prompt, config.mode, how) == ("Why?", Mode.GATED, {"chat": True})


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"Once", "Once"), (b"Once\n", "Once"), (b"Once\r\n", "Once"), (b"a\n\n", "a\n"), ("Zoë".encode(), "Zoë")],
)
def test_a_dash_reads_the_prompt_from_standard_input(
    fake_api: Any, invoke: Callable[..., Any], data: bytes, expected: str
) -> None:
    """``echo`` adds one newline that is not part of the prompt."""
    assert invoke(*RUN, "-", stdin=data).code == 0
    assert fake_api.session.asked[0][0] == expected


def test_a_file_holds_the_prompt(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Long prompts live in files."""
    file = tmp_path / "prompt.txt"
    file.write_text("Once upon\n")
    invoke(*RUN, "-f", str(file))
    assert fake_api.session.asked[0][0] == "Once upon"


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        ((), None, "a prompt is needed once, as -p TEXT, -f FILE or - for standard input, got nothing"),
        (("-p", "a", "-"), b"b", "got -p and -"),
        (("-p", ""), None, "the prompt is empty"),
        (("-",), b"", "the prompt is empty"),
        (("-",), b"\n", "the prompt is empty"),
        (("-",), b"caf\xe9 noir", "standard input is not valid UTF-8: byte 0xe9 at offset 3"),
        (("-f", "absent.txt"), None, "the prompt file absent.txt cannot be read: No such file or directory"),
        (("extra", "-p", "a"), None, "'extra' is not '-'"),
        (("-p", "a", "--three-level", "--drafter", "ngram"), None, "drafter is 'ngram', expected auto or model with"),
        (("-p", "a", "--power-budget", "0"), None, "power_budget_w is 0.0, expected more than 0 watts"),
        (("-p", "a", "--temperature", "99"), None, "temperature is 99.0, expected 0 to 10"),
        (("-p", "a", "--trace", "no/such/folder.jsonl"), None, "the folder no/such does not exist"),
        (("-p", "a", "--report", "/"), None, "--report / is a folder, expected a file name"),
        (("-p", "a", "--idle-baseline", "nan"), None, "'nan' is not a finite number"),
        (("-p", "a", "--idle-baseline", "inf"), None, "inf is not in the range 10.0<=x<=3600.0"),
        (("-p", "a", "--idle-baseline", "1"), None, "1.0 is not in the range 10.0<=x<=3600.0"),
        (("-p", "a", "--idle-baseline", "1e9"), None, "1000000000.0 is not in the range 10.0<=x<=3600.0"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    fake_api: Any, invoke: Callable[..., Any], arguments: tuple[str, ...], stdin: bytes | None, expected: str
) -> None:
    """Loading a model takes seconds: what can be known before is said before."""
    outcome = invoke(*RUN, *arguments, stdin=stdin)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert not fake_api.loads


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--mode", "fp16", "--draft-length", "5"), "--draft-length has no effect with --mode fp16"),
        (("--mode", "int4", "--theta-low", "1"), "--theta-low has no effect with --mode int4"),
        (("--mode", "gated", "--drafter", "ngram"), "--drafter has no effect with --mode gated"),
        (("--epsilon", "0.1"), "--epsilon has no effect with --mode exact"),
        (("--drafter", "none", "--draft-length", "5"), "--draft-length has no effect with --drafter none"),
        (
            ("--draft-length", "5", "--objective", "energy", "--max-draft-length", "9"),
            "--max-draft-length and --objective have no effect with --draft-length 5",
        ),
        (("--top-p", "0.5"), "--top-p has no effect with --temperature 0"),
    ],
)
def test_a_flag_that_does_nothing_is_said_once(
    fake_api: Any, invoke: Callable[..., Any], arguments: tuple[str, ...], expected: str
) -> None:
    """Two flags of which one is idle look like a slip of the hand."""
    outcome = invoke(*RUN, "-p", "a", "--quiet", *arguments)
    assert outcome.code == 0
    assert outcome.err == f"edgeprec: warning: {expected}: leave out one or the other\n"


def test_settings_for_many_commands_may_be_idle(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """The environment and a file are not about this one run."""
    file = tmp_path / "edgeprec.toml"
    file.write_text("top-k = 40\n")
    environ = {"EDGEPREC_DRAFT_LENGTH": "5"}
    outcome = invoke(*RUN, "-p", "a", "--quiet", "--mode", "fp16", "--config", str(file), env=environ)
    assert (outcome.code, outcome.err) == (0, "")


def test_an_error_of_the_session_is_one_line(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A prompt that does not fit is refused with both numbers, as the session words it."""
    fake_api.session.error = ConfigError("the prompt has 600 tokens, the context holds 512")
    outcome = invoke(*RUN, "-p", "long")
    assert outcome.code == 2
    assert outcome.err == "edgeprec: the prompt has 600 tokens, the context holds 512\n"
    assert fake_api.session.is_closed


def interrupt_at(token: int) -> Callable[[int], None]:
    """Return a hook that sends this process SIGINT before ``token``."""
    return lambda index: os.kill(os.getpid(), signal.SIGINT) if index == token else None


def test_ctrl_c_keeps_what_was_generated(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """The text so far, its statistics and exit code 130: nothing is lost, and a script sees the interrupt."""
    fake_api.session.before_token = interrupt_at(3)
    outcome = invoke(*RUN, "-p", "Why?")
    assert outcome.code == 130
    assert outcome.out == " The tide comes\n"
    assert "3 tokens" in outcome.err
    assert "interrupted" in outcome.err


def test_ctrl_c_still_gives_whole_json(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A program that interrupts the command can read what there was."""
    fake_api.session.before_token = interrupt_at(2)
    outcome = invoke(*RUN, "-p", "Why?", "--json")
    assert outcome.code == 130
    assert json.loads(outcome.out)["finish_reason"] == "cancelled"


def test_a_second_ctrl_c_ends_at_once(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """A pass that hangs can be left."""
    fake_api.session.before_token = lambda index: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)] and None
    outcome = invoke(*RUN, "-p", "Why?")
    assert outcome.code == 130
    assert "edgeprec: interrupted" in outcome.err
    assert fake_api.session.is_closed


def test_the_signal_handler_is_put_back(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """An application that runs the command in its own process keeps its handler."""
    before = signal.getsignal(signal.SIGINT)
    fake_api.session.before_token = interrupt_at(2)
    invoke(*RUN, "-p", "Why?")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_trace_holds_every_token_and_round(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Per-token facts go to the trace."""
    path = tmp_path / "run.jsonl"
    assert invoke(*RUN, "-p", "Why?", "-n", "8", "--trace", str(path)).code == 0
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert (kinds[0], kinds[-1]) == ("header", "end")
    assert kinds.count("token") == 8
    assert kinds.count("round") == 3
    header = json.loads(path.read_text().splitlines()[0])
    assert header["engine"]["name"] == "onnxruntime"
    assert header["config"]["mode"] == "exact"


def test_a_full_disk_under_the_trace_leaves_the_text_whole(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """The trace is worth less than the answer."""
    outcome = invoke(*RUN, "-p", "Why?", "-n", "4", "--trace", "/dev/full")
    assert outcome.code == 0
    assert outcome.out == " The tide comes in\n"
    assert outcome.err.count("the trace ends early: No space left on device") == 1


def test_a_report_is_written(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """The page is there and names the bundle."""
    path = tmp_path / "run.html"
    assert invoke(*RUN, "-p", "Why <b>?", "-n", "8", "--report", str(path)).code == 0
    page = path.read_text()
    assert "<h1>pair</h1>" in page
    assert "Why &lt;b&gt;?" in page


def test_colors_on_demand(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """FORCE_COLOR colours each token by its source, in a pipe too."""
    outcome = invoke(*RUN, "-p", "Why?", "-n", "3", env={"FORCE_COLOR": "1"})
    assert "\x1b[93m The\x1b[0m" in outcome.out


def test_a_model_cannot_steer_the_terminal(fake_api: Any, invoke: Callable[..., Any]) -> None:
    """Control characters in generated text are dropped where text is shown to a person."""
    fake_api.session.text = lambda index: "\x1b[2J\x07ok\n"
    outcome = invoke(*RUN, "-p", "Why?", "-n", "1", env={"FORCE_COLOR": "1"})
    assert "\x1b[2J" not in outcome.out
    assert "\x07" not in outcome.out
    assert "[2Jok\n" in outcome.out


def test_help_shows_examples_and_defaults(invoke: Callable[..., Any]) -> None:
    """``--help`` is the manual."""
    outcome = invoke("run", "--help")
    assert outcome.code == 0
    assert 'edgeprec run pair.edgeprec -p "The capital of France is" -n 32' in outcome.out
    words = " ".join(outcome.out.split())
    assert "[default: 128]" in words
    assert "[default: adaptive]" in words
