"""``edgeprec export``: flags become settings, refusals come before work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edgeprec import extras
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export.progress import ProgressEvent
from edgeprec.export.settings import ExportSettings


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, bundles: ModuleType, tmp_path: Path) -> SimpleNamespace:
    """Put a fake ``export_bundle`` in place that records its calls and writes a small bundle."""
    record = SimpleNamespace(calls=[], error=None)

    def export_bundle(source: str, output: Path, **settings: Any) -> Path:
        record.calls.append((source, output, settings))
        if record.error is not None:
            raise record.error
        settings["progress"](ProgressEvent("quantize", 1, 2, "layer 0"))
        bundles.make_bundle(output)
        return output

    module = ModuleType("edgeprec.api")
    module.__dict__["export_bundle"] = export_bundle
    monkeypatch.setitem(sys.modules, "edgeprec.api", module)
    return record


def test_defaults_are_those_of_the_settings(
    exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """A default is written once, in ``ExportSettings``."""
    outcome = invoke("export", "model.gguf", "-o", str(tmp_path / "pair.edgeprec"))
    assert outcome.code == 0
    ((source, output, settings),) = exports.calls
    assert (source, output) == ("model.gguf", tmp_path / "pair.edgeprec")
    assert settings["settings"] == ExportSettings()
    assert (settings["draft"], settings["resume"]) == ("self", False)
    assert "edgeprec run" in outcome.out


@pytest.mark.parametrize(
    ("draft", "flags", "is_told"), [(True, (), True), (False, (), False), (True, ("--draft", "self"), False)]
)
def test_a_draft_that_stays_behind_is_said(
    exports: SimpleNamespace,
    invoke: Callable[..., Any],
    bundles: ModuleType,
    tmp_path: Path,
    draft: bool,
    flags: tuple[str, ...],
    is_told: bool,
) -> None:
    """A bundle that is exported again would lose its draft model without a word; who says self means it."""
    source = bundles.make_bundle(tmp_path / "pair.edgeprec", draft=bundles.make_entry("draft") if draft else "self")
    outcome = invoke("export", str(source), "-o", str(tmp_path / "again.edgeprec"), *flags)
    assert outcome.code == 0
    assert (f"{source} has a draft model, which the new bundle will not have" in outcome.err) is is_told


def test_flags_become_settings(exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Each flag reaches its field."""
    flags = ["--draft", "small", "--quantizer", "gptq", "--group-size", "64", "--zero-point", "--resume"]
    flags += ["--calibration", "mails.txt"]
    invoke("export", "model", "-o", str(tmp_path / "pair.edgeprec"), *flags)
    settings = exports.calls[0][2]
    quantizer = settings["settings"].quantizer
    assert (quantizer.method, quantizer.group_size, quantizer.is_symmetric) == ("gptq", 64, False)
    assert settings["settings"].calibration == Path("mails.txt")
    assert (settings["draft"], settings["resume"]) == ("small", True)


def test_a_draft_length_of_a_bundle_is_said_to_do_nothing(
    exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """It is part of the commands for other servers; set in the environment it may be meant for run."""
    outcome = invoke("export", "model", "-o", str(tmp_path / "a"), "--draft-length", "5")
    assert outcome.code == 0
    assert "--draft-length has no effect with --format bundle" in outcome.err
    assert invoke("export", "model", "-o", str(tmp_path / "b"), env={"EDGEPREC_DRAFT_LENGTH": "5"}).err == ""


def test_json_names_the_bundle(exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """A script reads where the bundle is and how large."""
    outcome = invoke("export", "model", "-o", str(tmp_path / "pair.edgeprec"), "--json")
    found = json.loads(outcome.out)
    assert found["path"] == str(tmp_path / "pair.edgeprec")
    assert found["bytes"] > 0


def test_quiet_says_nothing(exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path) -> None:
    """Success without a word."""
    outcome = invoke("export", "model", "-o", str(tmp_path / "pair.edgeprec"), "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("model",), "Missing option '-o' / '--output'"),
        (("model", "-o", "x", "--quantizer", "awq"), "'awq' is not one of 'rtn', 'clip', 'gptq'"),
        (("model", "-o", "x", "--group-size", "48"), "'48' is not one of '32', '64', '128'"),
        (("model", "-o", "x", "--tensorrt", "sm77"), "--tensorrt 'sm77': no such GPU generation"),
        (("model", "-o", "x", "--tensorrt", "7.5"), "--tensorrt sm75: GPUs of this generation have no INT4"),
    ],
)
def test_wrong_flags_are_refused(
    exports: SimpleNamespace, invoke: Callable[..., Any], arguments: tuple[str, ...], expected: str
) -> None:
    """Nothing is begun with a flag that cannot be met."""
    outcome = invoke("export", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert exports.calls == []


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("model is no checkpoint"), 2), (EdgePrecError("the disk is full"), 1)]
)
def test_errors_of_the_export_are_one_line(
    exports: SimpleNamespace, invoke: Callable[..., Any], tmp_path: Path, error: EdgePrecError, code: int
) -> None:
    """The sentence of the exporter reaches the user unchanged."""
    exports.error = error
    outcome = invoke("export", "model", "-o", str(tmp_path / "pair.edgeprec"))
    assert (outcome.code, outcome.err) == (code, f"edgeprec: {error}\n")


def test_a_missing_extra_is_named(
    exports: SimpleNamespace, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that only runs bundles has no export packages: it is told what to install."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    outcome = invoke("export", "model", "-o", "x")
    assert outcome.code == 5
    assert "pip install 'edgeprec[export]'" in outcome.err
    assert exports.calls == []


def test_a_hand_off_says_how_to_serve_it(
    make_checkpoint: Callable[..., Path], invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """From a checkpoint and its draft to a folder, and commands that serve both with the K asked for."""
    source = str(make_checkpoint(tmp_path / "source", hidden_size=64, intermediate_size=96))
    flags = ["--format", "compressed-tensors", "--quantizer", "rtn", "--draft", source]
    output = str(tmp_path / "int4")
    for given in (("--resume",), ("--tensorrt", "sm89"), ("--draft-length", "16")):
        refused = invoke("export", source, "-o", output, *flags, *given)
        assert (refused.code, given[0].lstrip("-").replace("-", "_") in refused.err.replace("-", "_")) == (2, True)
        assert not Path(output).exists()
    outcome = invoke("export", source, "-o", output, *flags, "--draft-length", "5", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert (found["path"], found["draft"], found["draft_length"]) == (output, f"{output}/draft", 5)
    assert '"num_speculative_tokens": 5' in found["commands"]["vllm"]
    assert (Path(output) / "config.json").exists()
    assert "vllm serve" in invoke("export", source, "-o", output + "2", *flags[:-2]).out
    again = invoke("export", source, "-o", output, *flags)
    assert (again.code, "already exists" in again.err) == (2, True)
