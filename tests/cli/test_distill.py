"""``edgeprec distill``: flags become settings, the outcome is said, refusals come before work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.errors import EdgePrecError, MissingDependency
from edgeprec.export import distill as distill_module
from edgeprec.export.distill import DistilledDraft
from edgeprec.export.distill_settings import DistillSettings
from edgeprec.export.progress import ProgressEvent


@pytest.fixture
def distills(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a fake ``distill`` in place that records its calls."""
    record = SimpleNamespace(calls=[], error=None)

    def distill(target: str, output: Path, settings: DistillSettings, **options: Any) -> DistilledDraft:
        record.calls.append((target, output, settings, options))
        if record.error is not None:
            raise record.error
        options["progress"](ProgressEvent("train", 1, 2, "loss 1.0"))
        return DistilledDraft(path=output, record={"acceptance_rate": 0.614, "steps": 12})

    monkeypatch.setattr(distill_module, "distill", distill)
    return record


def test_defaults_are_those_of_the_settings(distills: SimpleNamespace, invoke: Callable[..., Any]) -> None:
    """A default is written once, in ``DistillSettings``."""
    outcome = invoke("distill", "model.gguf", "-o", "draft")
    assert outcome.code == 0
    ((target, output, settings, options),) = distills.calls
    assert (target, output, settings) == ("model.gguf", Path("draft"), DistillSettings())
    assert options["resume"] is False
    assert "the target accepts 61 % of its tokens; use it with edgeprec export --draft draft" in outcome.out


def test_flags_become_settings(distills: SimpleNamespace, invoke: Callable[..., Any]) -> None:
    """Each flag reaches its field."""
    flags = ["--layers", "3", "--minutes", "6.5", "--steps", "900", "--sample-tokens", "1000", "--sample-rows", "64"]
    flags += ["--sequence-tokens", "256", "--rows-per-step", "32", "--learning-rate", "0.001"]
    flags += ["--argmax-weight", "0.5", "--text", "mails.txt", "--device", "cuda", "--seed", "7", "--resume"]
    assert invoke("distill", "model", "-o", "draft", *flags).code == 0
    _, _, settings, options = distills.calls[0]
    assert settings == DistillSettings(
        layers=3,
        minutes=6.5,
        steps=900,
        sample_tokens=1000,
        sample_rows=64,
        sequence_tokens=256,
        rows_per_step=32,
        learning_rate=0.001,
        argmax_weight=0.5,
        text=Path("mails.txt"),
        device="cuda",
        seed=7,
    )
    assert options["resume"] is True


def test_the_record_holds_the_command_that_was_run(
    distills: SimpleNamespace, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was typed, quoted where a shell needs it."""
    monkeypatch.setattr("sys.argv", ["/usr/bin/edgeprec", "distill", "my model", "-o", "draft"])
    invoke("distill", "my model", "-o", "draft")
    assert distills.calls[0][3]["command"] == "edgeprec distill 'my model' -o draft"


def test_json_prints_the_training_record(distills: SimpleNamespace, invoke: Callable[..., Any]) -> None:
    """One object and nothing else."""
    outcome = invoke("distill", "model", "-o", "draft", "--json")
    assert json.loads(outcome.out) == {"path": "draft", "acceptance_rate": 0.614, "steps": 12}
    assert outcome.err == ""


def test_quiet_says_nothing(distills: SimpleNamespace, invoke: Callable[..., Any]) -> None:
    """Success without a word."""
    outcome = invoke("distill", "model", "-o", "draft", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("model",), "Missing option '-o' / '--output'"),
        (("model", "-o", "x", "--layers", "0"), "layers is 0, expected 1 or more"),
        (("model", "-o", "x", "--minutes", "-1"), "minutes is -1.0, expected a number above 0"),
        (("model", "-o", "x", "--device", "tpu"), "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
    ],
)
def test_wrong_flags_are_refused(
    distills: SimpleNamespace, invoke: Callable[..., Any], arguments: tuple[str, ...], expected: str
) -> None:
    """Nothing is begun with a flag that cannot be met."""
    outcome = invoke("distill", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert distills.calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EdgePrecError("the disk is full"), 1),
        (MissingDependency(package="torch", purpose="distilling a draft", extra="torch"), 5),
    ],
)
def test_errors_are_one_line(
    distills: SimpleNamespace, invoke: Callable[..., Any], error: EdgePrecError, code: int
) -> None:
    """The sentence of the trainer reaches the user unchanged."""
    distills.error = error
    outcome = invoke("distill", "model", "-o", "draft")
    assert (outcome.code, outcome.err) == (code, f"edgeprec: {error}\n")


def test_from_target_to_text_on_the_command_line(
    make_checkpoint: Callable[..., Path], invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """Distill, export with the draft, verify, inspect and run with it: FP16's tokens."""
    target = str(make_checkpoint(tmp_path / "target", hidden_size=64, num_heads=2, max_positions=96))
    draft, pair = str(tmp_path / "draft"), str(tmp_path / "pair.edgeprec")
    flags = ("--layers", "1", "--steps", "4", "--sample-tokens", "400", "--sample-rows", "8", "--sequence-tokens", "24")
    made = invoke("distill", target, "-o", draft, *flags, "--rows-per-step", "8", "--device", "cpu")
    assert made.code == 0, made.err
    assert "on this CPU drawing text from the target takes about" in made.err
    assert invoke("export", target, "--draft", draft, "-o", pair, "--quiet").code == 0
    assert invoke("verify", pair).code == 0
    facts = json.loads(invoke("inspect", pair, "--json").out)
    assert facts["models"]["draft"]["sharing"] == {"embedding": "target", "head": "target"}
    run = ("run", pair, "-p", "hello there", "-n", "16", "--ignore-eos", "--json")
    plain, drafted = (
        json.loads(invoke(*run, *more).out)
        for more in (("--mode", "fp16"), ("--drafter", "model", "--draft-length", "3"))
    )
    assert drafted["token_sha256"] == plain["token_sha256"]
    assert drafted["stats"]["drafted"] > 0


def test_a_draft_of_another_target_is_exit_code_2(
    make_checkpoint: Callable[..., Path], invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """The sentence names draft, its target and the one it was given for."""
    target, other = (
        str(make_checkpoint(tmp_path / name, seed=seed, max_positions=64))
        for seed, name in enumerate(("mine", "yours"))
    )
    flags = ("--layers", "1", "--steps", "1", "--sample-tokens", "200", "--sample-rows", "8", "--sequence-tokens", "24")
    draft = str(tmp_path / "small")
    assert invoke("distill", target, "-o", draft, *flags, "--device", "cpu", "--quiet").code == 0
    outcome = invoke("export", other, "--draft", draft, "-o", str(tmp_path / "pair.edgeprec"))
    assert outcome.code == 2
    assert "the draft small was made for mine, whose embedding or head is not that of yours" in outcome.err


@pytest.mark.parametrize("flag", ["--minutes", "--learning-rate", "--argmax-weight"])
def test_numbers_are_finite(distills: SimpleNamespace, invoke: Callable[..., Any], flag: str) -> None:
    """Training for ever, or by NaN, is a slip."""
    outcome = invoke("distill", "model.gguf", "-o", "draft", flag, "nan")
    assert outcome.code == 2
    assert f"Invalid value for '{flag}': 'nan' is not a finite number" in outcome.err
    assert not distills.calls


def test_a_draft_stays_out_of_bundles(distills: SimpleNamespace, invoke: Callable[..., Any], pair: Path) -> None:
    """A folder made there would be no part of the bundle."""
    outcome = invoke("distill", "model.gguf", "-o", str(pair / "draft"))
    assert outcome.code == 2
    assert "lies in the bundle" in outcome.err
    assert not distills.calls
