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


@pytest.mark.usefixtures("memory")
def test_memory_of_a_gpu(root: Path, invoke: Callable[..., Any]) -> None:
    """The torch engine's plan needs no GPU; its parts sum to its total, and nothing is said to fit where none is."""
    pytest.importorskip("torch")
    found = json.loads(invoke("inspect", str(root), "--memory", "--json").out)["gpu_memory"]
    assert (found["engine"], found["device"], found["available_bytes"]) == ("torch", "cuda", None)
    assert [plan["context_tokens"] for plan in found["contexts"]] == [512, 1024, 2048]
    for plan in found["contexts"]:
        parts = ("fp16_bytes", "int4_bytes", "embedding_bytes", "cache_bytes", "workspace_bytes")
        assert plan["total_bytes"] == sum(plan[part] for part in parts)
        allocated = plan["arena_bytes"] + plan["scratch_bytes"] + plan["cuda_allowance_bytes"]
        assert plan["total_bytes"] == allocated
        assert plan["fits"] is None
    caches = [plan["cache_bytes"] for plan in found["contexts"]]
    assert caches[2] == 2 * caches[1] == 4 * caches[0]
    shown = " ".join(invoke("inspect", str(root), "--memory").out.split())
    assert "Memory by context on a GPU, engine torch, MB" in shown
    assert "there is no GPU here" in shown


@pytest.mark.usefixtures("memory")
def test_memory_at_one_context(root: Path, invoke: Callable[..., Any]) -> None:
    """--context plans both engines for one length, of any size the model was made for."""
    found = json.loads(invoke("inspect", str(root), "--memory", "--context", "700", "--json").out)
    for engine in ("memory", "gpu_memory"):
        assert [plan["context_tokens"] for plan in found[engine]["contexts"]] == [700]
    assert invoke("inspect", str(root), "--memory", "--context", "4096").code == 2
    alone = invoke("inspect", str(root), "--context", "700")
    assert (alone.code, "give --memory with it" in alone.err) == (2, True)


@pytest.mark.usefixtures("memory")
def test_memory_of_a_gpu_that_is_there(root: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU the plan is held against what is free on it."""
    torch = pytest.importorskip("torch")
    from edgeprec.runtime import torch_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch_device, "available_memory", lambda device: AvailableMemory(5, f"free on {device}"))
    found = json.loads(invoke("inspect", str(root), "--memory", "--json").out)["gpu_memory"]
    assert (found["available_bytes"], found["bound"], found["note"]) == (5, "free on cuda:0", None)
    assert not any(plan["fits"] for plan in found["contexts"])


@pytest.mark.usefixtures("memory")
def test_memory_of_a_gpu_without_torch(root: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the other engine is planned all the same, and the reason is given."""
    from edgeprec.cli import gpu_memory

    monkeypatch.setattr(gpu_memory, "find_spec", lambda name: None)
    found = json.loads(invoke("inspect", str(root), "--memory", "--json").out)
    assert found["memory"]["contexts"]
    assert found["gpu_memory"]["contexts"] == []
    assert "torch is not installed" in found["gpu_memory"]["note"]
    assert "torch is not installed" in " ".join(invoke("inspect", str(root), "--memory").out.split())


@pytest.mark.usefixtures("memory")
def test_memory_of_blocks_no_kernel_reads(tmp_path: Path, bundles: ModuleType, invoke: Callable[..., Any]) -> None:
    """A bundle that the torch engine would refuse has no plan but a reason."""
    int4 = replace(bundles.make_entry().int4, group_size=16)
    files = {"calibration.json": FILES["calibration.json"]}
    root = bundles.make_bundle(tmp_path / "p", target=bundles.make_entry(int4=int4), files=files)
    found = json.loads(invoke("inspect", str(root), "--memory", "--json").out)["gpu_memory"]
    assert found["contexts"] == []
    assert "blocks have 16 weights" in found["note"]


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
