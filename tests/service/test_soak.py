"""``scripts/soak.py``: a short soak of a tiny bundle passes, and each kind of failure is told."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"
ASKED = Namespace(clients=2, minutes=1.0, bundle="tiny.edgeprec", queue=1)


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module of its own."""
    found = spec_from_file_location("edgeprec_script_soak", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    monkeypatch.setitem(sys.modules, found.name, module)
    found.loader.exec_module(module)
    return module


def test_a_short_soak_of_a_tiny_bundle(
    soak: ModuleType, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replies are compared, full queues are no failure, the server ends with 0. Memory needs longer to tell."""
    monkeypatch.setattr(soak, "MAX_GROWTH", 10.0)
    flags = ["--clients", "6", "--minutes", "0.05", "--tokens", "8", "--queue", "2", "--", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["soak.py", str(tiny_pair), *flags])
    assert soak.main() == 0, capsys.readouterr()
    words = capsys.readouterr().out
    assert "exit code after SIGTERM 0" in words
    assert "error" not in words


def tally_of(soak: ModuleType, **changes: Any) -> Any:
    """Return what a good run meets, with changes."""
    tally = soak.Tally(seconds=[0.1, 0.2, 0.3], tokens=9)
    tally.statuses.update({"200": 3, "429": 1})
    for name, value in changes.items():
        setattr(tally, name, value)
    return tally


@pytest.mark.parametrize(
    ("changes", "growth", "exit_code", "told"),
    [
        ({}, 0.01, 0, None),
        ({}, -0.2, 0, None),
        ({}, 0.05, 0, "memory grew by 5.0%"),
        ({}, 0.0, 1, "SIGTERM ended the server with 1"),
        ({"seconds": []}, 0.0, 0, "no reply was compared"),
    ],
)
def test_each_failure_is_told(
    soak: ModuleType,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    growth: float,
    exit_code: int,
    told: str | None,
) -> None:
    """And makes the script fail; 429 is none."""
    result = soak.report(ASKED, tally_of(soak, **changes), growth, [2.0**30, 2.0**30], exit_code)
    words = capsys.readouterr().out
    assert result == (0 if told is None else 1)
    assert ("error" in words) == (told is not None)
    assert told is None or told in words
    assert "requests 4: 200 3, 429 1" in words


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ((200, {"text": "b", "tokens": 1}), "another reply to"),
        ((500, {"retry_after": 1}), "status 500"),
        ((200, {"fault": "a stream has no [DONE]"}), "no [DONE]"),
        (OSError("connection reset"), "OSError: connection reset"),
    ],
)
def test_clients_see_faults(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, answer: Any, fault: str) -> None:
    """Another text, an error, a broken stream, a broken connection."""
    times = iter([0.0, 0.0, 0.0, 2.0, 2.0])

    def ask(*_arguments: Any, **_named: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(soak, "ask", ask)
    monkeypatch.setattr(soak.random, "Random", Steady)
    monkeypatch.setattr(soak.time, "monotonic", lambda: next(times, 2.0))
    tally = soak.Tally()
    case = soak.Case("/v1/completions", {"prompt": "a"})
    soak.client(None, {0: (case, {"text": "a", "tokens": 1})}, 1, 1.0, tally)
    assert any(fault in text for text in tally.faults), tally


class Steady:
    """A draw that streams and never hangs up."""

    def __init__(self, _seed: int) -> None:
        self._values = iter(())

    def randrange(self, _stop: int) -> int:
        """Return the first."""
        return 0

    def random(self) -> float:
        """Return less than a half only when asked for the first time of a request."""
        return 0.6


def test_streams_are_put_together(soak: ModuleType) -> None:
    """Of both kinds, with what must be the same for every client."""
    facts = '"edgeprec":{"token_sha256":"x","new_tokens":2}'
    chat = (
        'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"delta":{"content":"ab"},"finish_reason":null}]}\n\n'
        f'data: {{"choices":[{{"delta":{{}},"finish_reason":"stop"}}],{facts}}}\n\ndata: [DONE]\n\n'
    )
    text = f'data: {{"choices":[{{"text":"ab","finish_reason":"stop"}}],{facts}}}\n\ndata: [DONE]\n\n'
    expected = {"text": "ab", "finish_reason": "stop", "token_sha256": "x", "tokens": 2}
    assert soak.joined(chat) == soak.joined(text) == expected
    assert soak.joined(text.replace("[DONE]", "{}")) == {"fault": "a stream has no [DONE]"}


def test_growth_compares_the_end_with_the_beginning(soak: ModuleType) -> None:
    """Medians of a tenth each, so that one sample decides nothing."""
    assert soak.growth_of([100.0] * 50 + [104.0] * 50) == pytest.approx(0.04)
    assert soak.growth_of([100.0, 900.0, *[100.0] * 28]) == pytest.approx(0.0)
    assert soak.growth_of([100.0]) == 0.0


def test_cases_differ(soak: ModuleType) -> None:
    """Both routes, greedy and seeded, each body once."""
    cases: list[Any] = soak.make_cases(5)
    assert len({str(case) for case in cases}) == len(cases) == 16
    assert {case.path for case in cases} == {"/v1/completions", "/v1/chat/completions"}
    assert any("seed" in case.body for case in cases)
    make: Callable[[int], list[Any]] = soak.make_cases
    assert all(case.body["max_tokens"] == 7 for case in make(7))
