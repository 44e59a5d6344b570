"""``edgeprec serve`` up to the server itself: flags become settings, and what cannot be is told before loading."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edgeprec.cli.errors import run_and_report
from edgeprec.cli.group import cli, load_command
from edgeprec.config import DrafterKind, Mode
from edgeprec.runtime.service import packages, server
from edgeprec.runtime.service.settings import ServiceSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what servers were started with; none runs."""
    calls: list[dict[str, Any]] = []

    def run_service(open_session: Any, settings: Any, **more: Any) -> None:
        calls.append({"open_session": open_session, "settings": settings, **more})

    monkeypatch.setattr(server, "run_service", run_service)
    return calls


def serve(*arguments: str) -> int:
    """Run the command and return its exit code."""
    return run_and_report(cli, ["serve", *arguments])


def test_no_flags_give_the_settings_defaults(started: list[dict[str, Any]]) -> None:
    """A default is written once, in the dataclass; the model is called like its bundle."""
    assert serve("pairs/tiny.edgeprec") == 0
    assert started[0]["settings"] == ServiceSettings(model_name="tiny")


def test_every_setting_has_a_flag() -> None:
    """What Python code can set, the command line can."""
    names = {param.name for param in load_command("serve").params}
    assert {field.name for field in fields(ServiceSettings)} - {"generation"} <= names


def test_flags_become_settings(started: list[dict[str, Any]], tmp_path: Path) -> None:
    """Where it listens, limits, and what requests get that say nothing."""
    key_file = tmp_path / "keys"
    arguments = ["pair.edgeprec", "--host", "0.0.0.0", "--port", "0", "--api-key-file", str(key_file)]
    arguments += ["--cors-origin", "https://a.example", "--cors-origin", "http://b.example:81", "--queue", "3"]
    arguments += ["--max-tokens", "9", "--drain-seconds", "1.5", "--model-name", "mine", "--trace", "t.jsonl"]
    arguments += ["--mode", "fp16", "--temperature", "0.7", "--drafter", "ngram"]
    assert serve(*arguments) == 0
    settings = started[0]["settings"]
    assert (settings.host, settings.port, settings.api_key_file) == ("0.0.0.0", 0, key_file)
    assert settings.cors_origins == ("https://a.example", "http://b.example:81")
    assert (settings.queue, settings.max_tokens, settings.drain_seconds) == (3, 9, 1.5)
    assert (settings.model_name, settings.trace) == ("mine", Path("t.jsonl"))
    assert settings.generation.mode is Mode.FP16
    assert settings.generation.sampling.temperature == 0.7
    assert settings.generation.drafting.drafter is DrafterKind.NGRAM


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "board.local"])
def test_other_hosts_need_a_key(started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], host: str) -> None:
    """Unless somebody says that it may stand open."""
    assert serve("pair.edgeprec", "--host", host) == 2
    assert "there is no API key: give --api-key-file" in capsys.readouterr().err
    assert started == []
    assert serve("pair.edgeprec", "--host", host, "--insecure") == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.2.1"])
def test_this_machine_alone_needs_none(started: list[dict[str, Any]], host: str) -> None:
    """Local hosts are served without further ado."""
    assert serve("pair.edgeprec", "--host", host) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--body-seconds", "0"), "body_seconds is 0.0, expected more than 0 seconds"),
        (("--cors-origin", "app.example"), "expected such as https://app.example"),
        (("--cors-origin", "https://app.example/page"), "expected such as https://app.example"),
        (("--max-body-bytes", "10"), "max_body_bytes is 10, expected 1024 or more"),
        (("--temperature", "11"), "temperature is 11.0"),
    ],
)
def test_bad_settings_are_refused(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Exit code 2, one line, nothing started."""
    assert serve("pair.edgeprec", *arguments) == 2
    assert message in capsys.readouterr().err
    assert started == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that installs it, before anything is loaded."""
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    assert serve("pair.edgeprec") == 5
    message = capsys.readouterr().err
    assert "serving a bundle needs the package 'starlette'" in message
    assert "pip install 'edgeprec[serve]'" in message


@pytest.mark.parametrize("flag", ["--body-seconds", "--stall-seconds", "--request-seconds", "--drain-seconds"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_are_finite(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    """A limit of infinitely many seconds is none, and with NaN every comparison is false."""
    assert serve("pair.edgeprec", flag, value) == 2
    assert "is not a finite number" in capsys.readouterr().err
    assert not started


def test_a_flag_for_other_modes_is_said(started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """A request may ask for another mode, and most set a temperature; who starts the server may have meant one mode."""
    assert serve("pair.edgeprec", "--mode", "fp16", "--draft-length", "5", "--top-p", "0.9") == 0
    told = capsys.readouterr().err
    assert told == "edgeprec: warning: --draft-length only counts for requests that do not take --mode fp16\n"


def test_quiet_says_nothing(started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, where it listens is said on standard error."""
    serve("pair.edgeprec", "--quiet")
    serve("pair.edgeprec")
    for call in started:
        call["say"]("listening")
    assert capsys.readouterr().err == "edgeprec: listening\n"
