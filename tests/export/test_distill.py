"""``distill`` from a checkpoint to a draft in a bundle, and everything that stops it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgeprec
from edgeprec.bundle import Bundle
from edgeprec.errors import ConfigError, DeviceError, MissingDependency
from edgeprec.export import distill as distill_module
from edgeprec.export.distill import DistilledDraft, distill
from edgeprec.export.distill_settings import DistillSettings
from edgeprec.export.progress import ProgressEvent

DRIVER = Path(__file__).with_name("distill_kill.py")
TOY = DistillSettings(
    layers=1,
    steps=40,
    sample_tokens=600,
    sample_rows=16,
    sequence_tokens=24,
    rows_per_step=8,
    learning_rate=5e-3,
    probe_tokens=16,
    device="cpu",
)


@pytest.fixture(scope="module")
def target(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a toy target of two layers."""
    path: Path = checkpoints.make_checkpoint(
        tmp_path_factory.mktemp("toy") / "target", dtype="fp16", hidden_size=64, num_heads=2, max_positions=48
    )
    return path


@pytest.fixture(scope="module")
def drawn(target: Path, tmp_path_factory: pytest.TempPathFactory) -> DistilledDraft:
    """Return the toy's draft, made without interruption."""
    return distill(str(target), tmp_path_factory.mktemp("drawn") / "draft", TOY, command="edgeprec distill toy")


def test_the_folder_is_a_draft_with_its_record(drawn: DistilledDraft, target: Path) -> None:
    """Weights, shape, what is shared, and how it was trained: command, data, loss, acceptance, date."""
    names = {path.name for path in drawn.path.iterdir()}
    assert names == {"config.json", "edgeprec_draft.json", "model.safetensors", "training.json"}
    record = json.loads((drawn.path / "training.json").read_text())
    assert record == drawn.record
    assert (record["command"], record["target"], record["device"]) == ("edgeprec distill toy", "target", "cpu")
    assert record["steps"] == 40
    assert record["settings"]["learning_rate"] == 5e-3
    assert record["learned_tokens"] > 300
    assert len(record["date"]) == 10
    assert record["curve"][-1]["kl_bits"] < record["curve"][1]["kl_bits"]
    assert set(record["curve"][-1]["by_kind"]) == {"prose", "question", "code", "passage"}
    assert record["acceptance_rate"] == max(row["acceptance"] for row in record["curve"])
    assert record["layers"] == [record["skip_errors_bits"].index(max(record["skip_errors_bits"]))]
    assert not drawn.path.with_name("draft.partial").exists()


def test_the_draft_serves_its_target(drawn: DistilledDraft, target: Path, tmp_path: Path) -> None:
    """Exported, it drafts; INT4 finds the weights it was trained in; tokens are FP16's."""
    root = edgeprec.export_bundle(target, tmp_path / "pair.edgeprec", draft=str(drawn.path))
    draft = Bundle.open(root).model("draft")
    assert max(error.relative_error for error in draft.entry.errors) < 5e-3
    assert min(error.relative_error for error in Bundle.open(root).target.entry.errors) > 0.03
    with edgeprec.load(root, sensor="none", threads=1) as session:
        common: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
        plain = session.generate("the sand", mode="fp16", **common)
        drafted = session.generate("the sand", drafter="model", draft_length=4, **common)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.acceptance_rate is not None


@pytest.mark.parametrize("step", [1, 23])
def test_a_sigkill_changes_nothing(drawn: DistilledDraft, target: Path, tmp_path: Path, step: int) -> None:
    """A process killed while it trains, resumed by another, gives the weights of one that was left alone."""
    output = tmp_path / "draft"
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(target), str(output), str(step)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -9, done.stderr
    assert not output.exists()
    with pytest.raises(ConfigError, match="holds an interrupted run: repeat the command with --resume"):
        distill(str(target), output, TOY)
    stages: list[str] = []
    resumed = distill(str(target), output, TOY, resume=True, progress=lambda event: stages.append(event.stage))
    assert "sample" not in stages  # the text was kept
    assert (output / "model.safetensors").read_bytes() == (drawn.path / "model.safetensors").read_bytes()
    assert resumed.record["best_step"] == drawn.record["best_step"]


def test_resuming_with_other_settings_or_another_target_is_refused(
    checkpoints: ModuleType, target: Path, tmp_path: Path
) -> None:
    """What lies there is not this work."""

    def stop(event: ProgressEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(str(target), tmp_path / "draft", TOY, progress=stop)
    with pytest.raises(ConfigError, match="belongs to another target or other settings"):
        distill(str(target), tmp_path / "draft", replace(TOY, learning_rate=1e-3), resume=True)
    other = checkpoints.make_checkpoint(tmp_path / "other", dtype="fp16", hidden_size=64, num_heads=2, seed=1)
    with pytest.raises(ConfigError, match="belongs to another target or other settings"):
        distill(str(other), tmp_path / "draft", TOY, resume=True)


def test_ctrl_c_says_how_to_go_on(target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The work of minutes is not lost silently."""

    def stop(event: ProgressEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(str(target), tmp_path / "draft", TOY, progress=stop)
    assert f"stays in {tmp_path / 'draft.partial'}: continue it with --resume" in caplog.text


def test_the_cpu_is_said_to_be_slow_beforehand(target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With measured times, before the first token is drawn; and what the time asked for is worth."""
    said: list[str] = []

    def stop(event: ProgressEvent) -> None:
        said.append(caplog.text)
        raise KeyboardInterrupt

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        distill(str(target), tmp_path / "draft", replace(TOY, steps=None, minutes=3.0), progress=stop)
    assert "on this CPU drawing text from the target takes about" in said[0]
    assert "3 minutes hold about" in said[0]
    assert "use a GPU, or give it that time with --minutes" in said[0]


def test_a_run_by_time_draws_less_text(drawn: DistilledDraft, target: Path, tmp_path: Path) -> None:
    """The time asked for covers everything, so drawing ends before all tokens are there."""
    settings = replace(TOY, steps=None, minutes=0.25, sample_tokens=10**9)
    record = distill(str(target), tmp_path / "draft", settings).record
    assert record["steps"] > 0
    assert record["training_s"] >= 15.0
    assert record["sequences"] < 10**6


def refusal(error: type[Exception], target: Path, tmp_path: Path, settings: DistillSettings) -> str:
    """Return why a run is refused; nothing may be left behind."""
    with pytest.raises(error) as caught:
        distill(str(target), tmp_path / "out" / "draft", settings)
    assert not list(tmp_path.glob("out/*"))
    return str(caught.value)


def test_too_many_layers_are_refused(target: Path, tmp_path: Path) -> None:
    """A draft as deep as its target drafts nothing."""
    message = refusal(ConfigError, target, tmp_path, replace(TOY, layers=2))
    assert "a draft of 2 layers is asked for, expected fewer than the target's 2" in message


def test_a_gpu_that_is_not_there_is_refused(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name, CUDA is not replaced by a CPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees no GPU" in refusal(DeviceError, target, tmp_path, replace(TOY, device="cuda"))


@pytest.mark.parametrize("content", [b"", b"a few words", b"\xff\xfe"])
def test_a_text_that_cannot_be_learned_is_refused(target: Path, tmp_path: Path, content: bytes) -> None:
    """Empty, tiny, or no UTF-8: before anything is drawn."""
    (tmp_path / "text.txt").write_bytes(content)
    message = refusal(ConfigError, target, tmp_path, replace(TOY, text=tmp_path / "text.txt"))
    assert "expected at least 256" in message or "is not UTF-8" in message


def test_given_text_is_learned_too(target: Path, tmp_path: Path) -> None:
    """Its name is in the record, and another text is another run."""
    (tmp_path / "mails.txt").write_text("the sea and the shore, dear friend. " * 60)
    settings = replace(TOY, steps=2, text=tmp_path / "mails.txt")
    assert distill(str(target), tmp_path / "draft", settings).record["text"] == "mails.txt"


def test_an_existing_output_is_never_replaced(target: Path, tmp_path: Path) -> None:
    """Whatever it is."""
    (tmp_path / "draft").mkdir()
    with pytest.raises(ConfigError, match="exists already: choose another folder"):
        distill(str(target), tmp_path / "draft", TOY)


def test_without_torch_the_extra_is_named(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is opened first."""
    monkeypatch.setattr(distill_module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'edgeprec\[torch\]'"):
        distill("nowhere", tmp_path / "draft", TOY)


def test_two_runs_into_one_folder_are_refused(target: Path, tmp_path: Path) -> None:
    """The second would overwrite the first one's checkpoints."""

    def begin_again(event: ProgressEvent) -> None:
        with pytest.raises(ConfigError, match="is writing into"):
            distill(str(target), tmp_path / "draft", TOY, resume=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(str(target), tmp_path / "draft", TOY, progress=begin_again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0, expected 1 or more"),
        ({"steps": 0}, "steps is 0, expected 1 or more"),
        ({"minutes": 0.0}, "minutes is 0.0, expected a number above 0"),
        ({"minutes": float("nan")}, "minutes is nan, expected a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf, expected a number above 0"),
        ({"argmax_weight": 1.5}, "argmax_weight is 1.5, expected 0 to 1"),
        ({"sequence_tokens": 4}, "sequence_tokens is 4, expected 8 or more"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"device": "tpu"}, "device is 'tpu', expected one of auto, cpu, cuda"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    """By name, with what is allowed."""
    with pytest.raises(ConfigError, match=message):
        DistillSettings(**change)
