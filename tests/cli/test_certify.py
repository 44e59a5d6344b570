"""``edgeprec certify``: the verdict, in words, as JSON and as exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeprec.config import GenerationConfig, Mode
from edgeprec.runtime import certificate
from edgeprec.runtime.certificate import Certificate, CertificateRow

SAME = CertificateRow(prompt="Once", tokens=8, first_difference=None, logit_gap=None)
TIE = CertificateRow(prompt="Twice", tokens=8, first_difference=3, logit_gap=0.0004)
FAULT = CertificateRow(prompt="Thrice", tokens=8, first_difference=5, logit_gap=float("inf"))


@pytest.fixture
def certify_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that makes ``certify`` answer with rows and record its calls."""

    def arrange(*rows: CertificateRow) -> list[Any]:
        calls: list[Any] = []

        def certify(session: Any, prompts: list[str], *, config: GenerationConfig, progress: Any) -> Certificate:
            calls.append((prompts, config))
            progress(1, 1)
            return Certificate(mode=config.mode, rows=rows)

        monkeypatch.setattr(certificate, "certify", certify)
        return calls

    return arrange


@pytest.mark.parametrize(
    ("rows", "code", "verdict"),
    [((SAME,), 0, "identical"), ((SAME, TIE), 0, "within tolerance"), ((SAME, TIE, FAULT), 1, "different")],
)
def test_the_exit_code_is_the_verdict(
    fake_api: Any,
    certify_as: Callable[..., Any],
    invoke: Callable[..., Any],
    rows: tuple[CertificateRow, ...],
    code: int,
    verdict: str,
) -> None:
    """A tie is no failure; a real difference is."""
    certify_as(*rows)
    outcome = invoke("certify", "pair.edgeprec")
    assert outcome.code == code
    assert outcome.out.splitlines()[-1].startswith(f"{verdict}: mode exact against fp16, {len(rows)} prompts")


def test_a_difference_is_named_with_its_index_and_gap(
    fake_api: Any, certify_as: Callable[..., Any], invoke: Callable[..., Any]
) -> None:
    """Where to look is in the line."""
    certify_as(TIE)
    assert "differs at     3, logit gap 0.0004  Twice" in invoke("certify", "pair.edgeprec").out


def test_what_the_engine_does_not_promise_is_a_note(
    fake_api: Any, certify_as: Callable[..., Any], invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference is easier to judge beside it: in the text before the verdict, in JSON as the reply's field."""
    certify_as(SAME)
    info = replace(fake_api.session.info, fallbacks=("near ties may differ",))
    monkeypatch.setattr(type(fake_api.session), "info", info)
    assert invoke("certify", "pair.edgeprec").out.splitlines()[-2] == "note: near ties may differ"
    assert json.loads(invoke("certify", "pair.edgeprec", "--json").out)["fallbacks"] == ["near ties may differ"]
    assert "near ties" not in invoke("certify", "pair.edgeprec", "--quiet").out


def test_json_is_strict(fake_api: Any, certify_as: Callable[..., Any], invoke: Callable[..., Any]) -> None:
    """An infinite gap is no JSON number: it becomes null."""
    certify_as(FAULT)
    outcome = invoke("certify", "pair.edgeprec", "--json")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(outcome.out, parse_constant=refuse)
    assert found["verdict"] == "different"
    assert found["rows"][0]["logit_gap"] is None


def test_flags_and_prompts_reach_the_check(
    fake_api: Any, certify_as: Callable[..., Any], invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """What is certified is what the flags describe."""
    calls = certify_as(SAME)
    file = tmp_path / "prompts.txt"
    file.write_text("Once\n\nTwice\n")
    invoke("certify", "pair.edgeprec", "-f", str(file), "-n", "7", "--draft-length", "5", "--quiet")
    ((prompts, config),) = calls
    assert prompts == ["Once", "Twice"]
    assert (config.mode, config.max_new_tokens, config.drafting.draft_length) == (Mode.EXACT, 7, 5)


def test_twenty_prompts_ship(fake_api: Any, certify_as: Callable[..., Any], invoke: Callable[..., Any]) -> None:
    """Without a file there is still something to certify on."""
    calls = certify_as(SAME)
    invoke("certify", "pair.edgeprec")
    ((prompts, _),) = calls
    assert len(prompts) == len(set(prompts)) == 20


def test_a_file_without_prompts_is_refused(fake_api: Any, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Certifying nothing would pass."""
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n")
    outcome = invoke("certify", "pair.edgeprec", "-f", str(file))
    assert outcome.code == 2
    assert "is empty: write one prompt a line" in outcome.err
