"""``edgeprec inspect``: the facts of a bundle for a person and as JSON, without reading weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec import available_memory
from edgeprec.available_memory import AvailableMemory
from edgeprec.bundle_model import LayerError
from edgeprec.bundle_schema import EngineEntry
from edgeprec.calibration import AgreementGrid, Calibration
from edgeprec.cli.bundle_facts import summarize_errors

CALIBRATION = Calibration(
    int4=AgreementGrid(trials=(10,) * 32, agreed=(9,) * 32),
    theta_low_bits=0.5,
    theta_high_bits=2.25,
    layer_order=(1, 0),
    sensitivity=(0.1, 0.2),
    text="test",
)
FILES = {"calibration.json": json.dumps(CALIBRATION.to_json()).encode(), "engines/sm89/target.plan": b"engine"}


@pytest.fixture
def root(tmp_path: Path, bundles: ModuleType) -> Path:
    """Return a bundle with calibration, a draft model that shares its embedding, and an engine."""
    draft = bundles.make_entry("draft", bundles.make_config(num_layers=1), shares_embedding=True)
    engine = EngineEntry(
        kind="tensorrt_rtx", sm="sm89", model="target", file="engines/sm89/target.plan", version="1.7.0"
    )
    path: Path = bundles.make_bundle(tmp_path / "pair.edgeprec", draft=draft, files=FILES, engines=(engine,))
    return path


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the machine a known amount of memory."""
    known = AvailableMemory(1 << 31, "MemAvailable")
    monkeypatch.setattr(available_memory, "read_available_memory", lambda: known)


def test_tables(root: Path, invoke: Callable[..., Any]) -> None:
    """A person finds the models, variants, errors, thresholds, sharing, engines, files and sources."""
    outcome = invoke("inspect", str(root))
    assert (outcome.code, outcome.err) == (0, "")
    for part in (
        "4.50 bits/weight",
        "embedding of the target",
        "clip, blocks of 32, symmetric",
        "LOW below 0.50 bits, HIGH above 2.25 bits",
        "6.25 %",
        "tensorrt_rtx",
        "target/int4.safetensors",
        "model.safetensors",
    ):
        assert part in " ".join(outcome.out.split())
    assert "Memory by context" not in outcome.out


def test_json(root: Path, invoke: Callable[..., Any]) -> None:
    """The JSON is the manifest with sizes, and the engines as the contract has them."""
    values = json.loads(invoke("inspect", str(root), "--json").out)
    assert values["models"]["target"]["variants"]["int4"]["bits_per_weight"] == 4.5
    assert values["models"]["draft"]["sharing"] == {"embedding": "target"}
    assert values["calibration"]["theta_high_bits"] == 2.25
    engine = {"kind": "tensorrt_rtx", "sm": "sm89", "model": "target", "bytes": 6, "version": "1.7.0"}
    assert values["engines"][0].items() >= engine.items()
    assert set(values["error_summary"]) == {"target", "draft"}
    assert "memory" not in values


@pytest.mark.usefixtures("memory")
def test_memory(root: Path, invoke: Callable[..., Any]) -> None:
    """--memory says what each context needs and which is the longest that fits."""
    found = json.loads(invoke("inspect", str(root), "--memory", "--json").out)["memory"]
    assert (found["engine"], found["available_bytes"], found["largest_context"]) == ("onnxruntime", 1 << 31, 2048)
    assert [plan["context_tokens"] for plan in found["contexts"]] == [512, 1024, 2048]
    assert all(plan["fits"] for plan in found["contexts"])
    shown = " ".join(invoke("inspect", str(root), "--memory").out.split())
    assert "2,147.5 MB are available (MemAvailable): the longest context that fits is 2,048 tokens" in shown


def test_memory_that_is_not_there(root: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing fits, the table says so and nothing is refused: it is a question."""
    monkeypatch.setattr(available_memory, "read_available_memory", lambda: AvailableMemory(5, "group"))
    outcome = invoke("inspect", str(root), "--memory")
    assert outcome.code == 0
    assert "no context fits" in " ".join(outcome.out.split())


@pytest.mark.parametrize(("draft", "words"), [("self", "(self)"), (None, "none")])
def test_drafts_without_files(
    tmp_path: Path, bundles: ModuleType, invoke: Callable[..., Any], draft: str | None, words: str
) -> None:
    """A draft that adds no file is named in words."""
    root = bundles.make_bundle(tmp_path / "p", draft=draft, files={"calibration.json": FILES["calibration.json"]})
    line = next(line for line in invoke("inspect", str(root)).out.splitlines() if line.split()[:1] == ["draft"])
    assert line.split()[-1] == words


def test_damaged_calibration(tmp_path: Path, bundles: ModuleType, invoke: Callable[..., Any]) -> None:
    """A calibration that is no calibration is a damaged bundle."""
    outcome = invoke("inspect", str(bundles.make_bundle(tmp_path / "p", files={"calibration.json": b"{}"})))
    assert outcome.code == 3
    assert "calibration.json" in outcome.err


def test_missing_file(root: Path, invoke: Callable[..., Any]) -> None:
    """An incomplete bundle is refused with the file that is missing."""
    (root / "target/model.fp32.onnx").unlink()
    outcome = invoke("inspect", str(root))
    assert outcome.code == 3
    assert "model.fp32.onnx is missing" in outcome.err


def test_names_are_no_markup(tmp_path: Path, bundles: ModuleType, invoke: Callable[..., Any]) -> None:
    """A bundle's name can neither colour nor steer the terminal."""
    files = {"calibration.json": FILES["calibration.json"]}
    root = bundles.make_bundle(tmp_path / "p", name="[red]x\x1b[2J", files=files)
    shown = invoke("inspect", str(root)).out
    assert "[red]x[2J" in shown
    assert "\x1b" not in shown


def test_error_summary_names_the_worst_layer() -> None:
    """The summary is by kind of linear, with mean, largest and where that is."""
    errors = [
        LayerError(layer=0, linear="qkv", relative_error=0.1, output_error=0.2),
        LayerError(layer=1, linear="qkv", relative_error=0.3, output_error=None),
        LayerError(layer=None, linear="head", relative_error=0.5),
    ]
    qkv, head = summarize_errors(errors)
    assert (qkv["linear"], qkv["layers"], qkv["worst_layer"]) == ("qkv", 2, 1)
    assert qkv["mean_relative_error"] == pytest.approx(0.2)
    assert (qkv["max_relative_error"], qkv["mean_output_error"], qkv["max_output_error"]) == (0.3, 0.2, 0.2)
    assert (head["worst_layer"], head["mean_output_error"]) == (None, None)


def test_no_errors_no_summary(tmp_path: Path, bundles: ModuleType, invoke: Callable[..., Any]) -> None:
    """A model whose errors were not recorded has no table of them."""
    files = {"calibration.json": FILES["calibration.json"]}
    root = bundles.make_bundle(tmp_path / "p", target=replace(bundles.make_entry(), errors=()), files=files)
    assert "Error of INT4" not in invoke("inspect", str(root)).out
