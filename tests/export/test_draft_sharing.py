"""A draft that shares its target's embedding and head: what its folder holds, whom it fits, what bundles make of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file

import edgeprec
from edgeprec.api import export_bundle
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.bundle_verify import verify_bundle
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import disk
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.distill_int4 import round_to_int4
from edgeprec.export.draft_facts import DRAFT_FILE, DraftFacts
from edgeprec.export.draft_reader import is_shared_draft, open_draft
from edgeprec.export.draft_writer import draft_config_json, write_draft
from edgeprec.export.hf_config import read_model_config
from edgeprec.export.json_object import JsonObject
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.settings import ExportSettings
from edgeprec.precision import Plan
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 3, "vocab_size": 301}
RTN = ExportSettings(quantizer=QuantizerSettings(method="rtn"))
TOKENS = [5, 17, 250, 9, 33, 120, 300]
LINEARS = ("qkv", "o", "gate_up", "down")


def weights_of(target: Checkpoint, layers: tuple[int, ...]) -> dict[str, npt.NDArray[np.float32]]:
    """Return some layers of a target under the names of a trained draft's state."""
    weights: dict[str, npt.NDArray[np.float32]] = {"final_norm.scale": target.final_norm()}
    for index, layer in enumerate(layers):
        place = f"layers.{index}."
        for name in LINEARS:
            weights[f"{place}linears.{name}.weight"] = target.linear(layer, name).T.astype(np.float32)
        bias = target.bias(layer)
        if bias is not None:
            weights[f"{place}linears.qkv.bias"] = bias
        for norm in ("input", "post_attention", *(("q", "k") if target.config.has_qk_norm else ())):
            weights[f"{place}norms.{norm}.scale"] = target.norm(layer, norm)
    return weights


def make_draft(folder: Path, target: Checkpoint, layers: tuple[int, ...] = (0, 2)) -> Path:
    """Write a draft made of some of the target's layers."""
    config = replace(target.config, num_layers=len(layers))
    facts = DraftFacts.of(target, layers)
    write_draft(folder, config, weights_of(target, layers), facts, {"steps": 0}, group_size=32)
    return folder


def full_copy(folder: Path, target: Path, draft: Path) -> Path:
    """Write the checkpoint that the draft would be if it shared nothing."""
    from safetensors.numpy import save_file

    shutil.copytree(target, folder)
    (folder / "config.json").write_text((draft / "config.json").read_text())
    tensors = load_file(target / "model.safetensors")
    ends = {name: values for name, values in tensors.items() if name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(ends | load_file(draft / "model.safetensors"), folder / "model.safetensors")
    return folder


def draft_of(root: Path) -> BundleModel:
    """Return the draft model of a bundle."""
    model = Bundle.open(root).draft
    assert isinstance(model, BundleModel)
    return model


def logits(model: BundleModel, gates: tuple[bool, ...]) -> npt.NDArray[np.float32]:
    """Run one pass with these gates, True = INT4."""
    engine = OnnxRuntimeEngine.open(model.graph_path("fp32"), model.architecture, context_tokens=32, threads=1)
    try:
        return engine.forward(TOKENS, position=0, plan=Plan(gates)).logits.copy()
    finally:
        engine.close()


@pytest.fixture(scope="module")
def target(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tied target of three layers and odd vocabulary."""
    path: Path = checkpoints.make_checkpoint(tmp_path_factory.mktemp("t") / "target", dtype="fp16", **SHAPE)
    return path


@pytest.fixture(scope="module")
def draft(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a draft of two of its layers."""
    return make_draft(tmp_path_factory.mktemp("d") / "draft", open_checkpoint(str(target)))


@pytest.fixture(scope="module")
def shared(target: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the pair's bundle."""
    output = tmp_path_factory.mktemp("b") / "shared.edgeprec"
    return export_bundle(target, output, draft=str(draft), settings=RTN)


def test_the_folder_holds_layers_only(draft: Path) -> None:
    """Neither embedding nor head are stored, in FP16 and under Hugging Face names."""
    tensors = load_file(draft / "model.safetensors")
    assert "model.layers.1.self_attn.k_proj.weight" in tensors
    assert "model.norm.weight" in tensors
    assert not [name for name in tensors if "embed" in name or "head" in name or ".layers.2." in name]
    assert {values.dtype for values in tensors.values()} == {np.dtype(np.float16)}
    assert is_shared_draft(str(draft))


@pytest.mark.parametrize(
    ("family", "spec"),
    [
        ("llama", {"tied": True}),
        ("llama", {"tied": False, "vocab_size": 300}),
        ("qwen2", {"tied": True}),
        ("qwen3", {"tied": False, "head_dim": 16}),
    ],
)
def test_what_is_written_is_read_back(
    checkpoints: ModuleType, tmp_path: Path, family: str, spec: dict[str, Any]
) -> None:
    """A draft of the target's own layers has the target's weights, embedding and head included."""
    path = checkpoints.make_checkpoint(tmp_path / "t", family, dtype="fp16", **SHAPE | spec)
    target = open_checkpoint(str(path))
    opened = open_draft(make_draft(tmp_path / "d", target), target)
    assert opened.config == replace(target.config, num_layers=2)
    for layer, source in enumerate((0, 2)):
        for name in LINEARS:
            np.testing.assert_array_equal(opened.linear(layer, name), target.linear(source, name))
    np.testing.assert_array_equal(opened.embedding(), target.embedding())
    head, expected = opened.head(), target.head()
    assert (head is None) == (expected is None) == target.config.tied_embeddings
    if head is not None and expected is not None:
        np.testing.assert_array_equal(head, expected)


def test_the_shape_survives_its_json(target: Path) -> None:
    """config.json says the whole shape, Llama 3's rotary scaling included."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    raw = json.loads((target / "config.json").read_text()) | {"rope_scaling": scaling}
    config = read_model_config(JsonObject(raw, origin="raw"), has_head=False)
    assert config.rope_scaling is not None
    again = JsonObject(json.loads(json.dumps(draft_config_json(config))), origin="written")
    assert read_model_config(again, has_head=False) == config


@pytest.mark.parametrize("tied", [True, False])
def test_the_shared_draft_gives_the_logits_of_its_full_copy(
    checkpoints: ModuleType, tmp_path: Path, tied: bool
) -> None:
    """Bit for bit, in INT4 as it drafts, and with FP16 layers as its prefill runs, zero points included."""
    path = checkpoints.make_checkpoint(tmp_path / "t", dtype="fp16", tied=tied, **SHAPE)
    draft = make_draft(tmp_path / "d", open_checkpoint(str(path)))
    settings = ExportSettings(quantizer=QuantizerSettings(method="rtn", is_symmetric=tied))
    shared = draft_of(export_bundle(path, tmp_path / "shared", draft=str(draft), settings=settings))
    copy = full_copy(tmp_path / "copy", path, draft)
    whole = draft_of(export_bundle(path, tmp_path / "whole", draft=str(copy), settings=settings))
    for gates in ((True, True, True), (False, False, True), (False, True, True)):
        np.testing.assert_array_equal(logits(shared, gates), logits(whole, gates))
    assert np.ptp(logits(shared, (True, True, True))) > 0.1
    np.testing.assert_array_equal(logits(shared, (False,) * 3), logits(shared, (False, False, True)))  # one head, INT4


def test_the_bundle_stores_what_is_shared_once(shared: Path, target: Path) -> None:
    """The draft's files have no embedding and no head; the manifest says whose they are, and every byte is listed."""
    model = draft_of(shared)
    assert (model.entry.shares_embedding, model.entry.shares_head) == (True, True)
    assert [error.linear for error in model.entry.errors if error.layer is None] == []
    assert verify_bundle(Bundle.open(shared)).is_ok
    assert model.fp16_path.stat().st_size < Bundle.open(shared).target.fp16_path.stat().st_size * 0.7
    assert not (shared / "draft/tokenizer.json").exists()
    assert model.graph_path("fp32").parent == shared
    target_entry = Bundle.open(shared).target.entry
    assert model.entry.int4.bits_per_weight == pytest.approx(target_entry.int4.bits_per_weight, rel=0.02)


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_a_copied_bundle_runs_with_its_draft(shared: Path, tmp_path: Path, engine: str) -> None:
    """Nothing outside the folder is read, and exact decoding gives FP16's tokens with this drafter in every engine."""
    moved = Path(shutil.copytree(shared, tmp_path / "moved.edgeprec"))
    with edgeprec.load(moved, sensor="none", threads=1, engine=engine) as session:
        common: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
        plain = session.generate("the sand", mode="fp16", **common)
        drafted = session.generate("the sand", drafter="model", draft_length=3, **common)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.drafted > 0


def test_an_interrupted_export_goes_on_to_the_same_bytes(
    target: Path, draft: Path, shared: Path, tmp_path: Path
) -> None:
    """A stop in the draft's last layer costs that layer."""
    output = tmp_path / "shared.edgeprec"

    def stop(event: edgeprec.ProgressEvent) -> None:
        if event.detail == "draft layer 1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_bundle(target, output, draft=str(draft), settings=RTN, progress=stop)
    done: list[str] = []
    export_bundle(
        target, output, draft=str(draft), settings=RTN, resume=True, progress=lambda event: done.append(event.stage)
    )
    for name in Bundle.open(shared).manifest.files:
        assert (output / name).read_bytes() == (shared / name).read_bytes(), name


def test_calibration_measures_the_shared_draft(target: Path, draft: Path, tmp_path: Path) -> None:
    """The draft's agreement by entropy is in calibration.json like any draft's."""
    settings = ExportSettings(quantizer=QuantizerSettings(method="clip"))
    output = export_bundle(target, tmp_path / "pair", draft=str(draft), settings=settings)
    assert json.loads((output / "calibration.json").read_text())["draft"] is not None


@pytest.mark.parametrize(("has_signed_scales", "quantizer"), [(True, "rtn"), (False, "clip")])
def test_a_draft_on_its_grid_is_only_rounded(
    target: Path, tmp_path: Path, has_signed_scales: bool, quantizer: str
) -> None:
    """What was trained in INT4 comes back to the bit without being fitted; another kind of grid is fitted to it."""
    checkpoint = open_checkpoint(str(target))
    config = replace(checkpoint.config, num_layers=1)
    weights = weights_of(checkpoint, (1,))
    for name in (name for name in weights if name.endswith(tuple(f"{linear}.weight" for linear in LINEARS))):
        weights[name] = round_to_int4(torch.from_numpy(weights[name]), group_size=32).numpy()
    folder = tmp_path / "draft"
    write_draft(folder, config, weights, DraftFacts.of(checkpoint, (1,)), {"steps": 0}, group_size=32)
    settings = QuantizerSettings(method="clip", has_signed_scales=has_signed_scales)
    output = export_bundle(
        target, tmp_path / "pair", draft=str(folder), settings=ExportSettings(quantizer=settings, is_calibrated=False)
    )
    entry = draft_of(output).entry
    assert (entry.int4.quantizer, Bundle.open(output).target.entry.int4.quantizer) == (quantizer, "clip")
    if has_signed_scales:
        assert max(error.relative_error for error in entry.errors) < 1e-3


def refusal(target: Path, draft: Path, tmp_path: Path) -> str:
    """Return the sentence with which the pair is refused; nothing may lie at the output."""
    with pytest.raises(ConfigError) as caught:
        export_bundle(target, tmp_path / "refused", draft=str(draft), settings=RTN)
    assert not list(tmp_path.glob("refused*"))
    return str(caught.value)


def test_a_draft_of_another_target_is_refused_by_name(checkpoints: ModuleType, draft: Path, tmp_path: Path) -> None:
    """Same shape and tokenizer, other embedding: its logits would be noise."""
    other = checkpoints.make_checkpoint(tmp_path / "other", dtype="fp16", seed=1, **SHAPE)
    expected = "the draft draft was made for target, whose embedding or head is not that of other: distill one"
    assert expected in refusal(other, draft, tmp_path)


def test_a_draft_of_another_tokenizer_is_refused_by_name(target: Path, draft: Path, tmp_path: Path) -> None:
    """Ids would mean other words, though every weight is the same."""
    other = Path(shutil.copytree(target, tmp_path / "other"))
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["s"], vocabulary["t"] = vocabulary["t"], vocabulary["s"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    expected = "the draft draft was made for target, whose tokenizer is not that of other: distill one"
    assert expected in refusal(other, draft, tmp_path)


def test_a_target_tuned_further_keeps_its_draft(
    checkpoints: ModuleType, target: Path, draft: Path, tmp_path: Path
) -> None:
    """Layers may change under the draft as long as embedding and head stay."""
    tuned = Path(shutil.copytree(target, tmp_path / "tuned"))
    tensors = load_file(tuned / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoints.write_safetensors(
        tuned / "model.safetensors", tensors | {name: tensors[name] * np.float16(2.0)}, dtype="fp16"
    )
    assert open_draft(draft, open_checkpoint(str(tuned))).config.num_layers == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts | {"schema_version": 3}, "newer EdgePrec"),
        (lambda facts: facts | {"target": None}, "does not say for which target"),
        (lambda facts: facts | {"target": {"name": "x"}}, "does not say for which target"),
        (lambda facts: facts | {"layers": "0,2"}, "does not say for which target"),
        (lambda facts: {}, "no key 'schema_version'"),
    ],
)
def test_damaged_facts_are_refused(
    target: Path, draft: Path, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    """A folder that does not say whose draft it is cannot be checked, so it is not used."""
    copy = Path(shutil.copytree(draft, tmp_path / "copy"))
    (copy / DRAFT_FILE).write_text(json.dumps(change(json.loads((copy / DRAFT_FILE).read_text()))))
    assert message in refusal(target, copy, tmp_path)


def test_a_draft_is_no_target(draft: Path, tmp_path: Path) -> None:
    """Its folder looks like a checkpoint and is not one."""
    with pytest.raises(ConfigError, match="is a draft without embedding and head"):
        export_bundle(draft, tmp_path / "x", settings=RTN)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e6])
def test_weights_fp16_cannot_hold_are_not_written(target: Path, tmp_path: Path, bad: float) -> None:
    """A diverged training cannot become a draft; the tensor is named."""
    opened = open_checkpoint(str(target))
    weights = weights_of(opened, (0,))
    weights["layers.0.linears.o.weight"][0, 0] = bad
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.self_attn\.o_proj\.weight holds values FP16 cannot hold"):
        write_draft(
            tmp_path / "d",
            replace(opened.config, num_layers=1),
            weights,
            DraftFacts.of(opened, (0,)),
            {},
            group_size=32,
        )
    assert not (tmp_path / "d").exists()


def test_a_full_disk_leaves_no_draft(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that makes the folder a draft is written last."""
    opened, real = open_checkpoint(str(target)), disk.write_at
    budget = [2000]

    def write(descriptor: int, data: memoryview, *, offset_bytes: int) -> None:
        budget[0] -= len(data)
        if budget[0] < 0:
            raise OSError(28, "No space left on device")
        real(descriptor, data, offset_bytes=offset_bytes)

    monkeypatch.setattr(disk, "write_at", write)
    with pytest.raises(EdgePrecError, match="the disk is full"):
        make_draft(tmp_path / "d", opened)
    assert not is_shared_draft(str(tmp_path / "d"))
