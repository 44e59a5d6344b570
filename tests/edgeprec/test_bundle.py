"""Opening a bundle: strict, cheap, and never outside its folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.bundle_schema import SCHEMA_VERSION, BundleManifest, FileEntry
from edgeprec.errors import BundleError

GOLDEN = Path(__file__).with_name("golden_bundle.json")


def rewrite(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change ``bundle.json`` and give it the digest of its new text, as whoever meant harm would."""
    path = root / "bundle.json"
    values = json.loads(path.read_text())
    change(values)
    values.pop("sha256", None)
    text = json.dumps(values, indent=1, sort_keys=True) + "\n"
    values["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def test_golden_manifest(root: Path) -> None:
    """The text of bundle.json is a contract: it changes only together with the schema version."""
    assert (root / "bundle.json").read_text() == GOLDEN.read_text()


def test_manifest_round_trip(bundles: ModuleType) -> None:
    """Reading what was written gives the same manifest and the same bytes."""
    draft = bundles.make_entry("draft", bundles.make_config(num_layers=1), shares_embedding=True)
    manifest = bundles.make_manifest(draft=draft, files={"a/b": FileEntry(3, "0" * 64)})
    again = BundleManifest.from_bytes(manifest.to_bytes(), where="bundle.json")
    assert again == manifest
    assert again.to_bytes() == manifest.to_bytes()


def test_open_gives_models_and_files(root: Path) -> None:
    """What the runtime needs is there by name."""
    bundle = Bundle.open(root)
    assert bundle.draft == "self"
    assert bundle.model("draft") == bundle.target
    assert bundle.target.graph_path("fp32") == root / "target/model.fp32.onnx"
    assert bundle.calibration_path == root / "calibration.json"
    assert bundle.chat_template_path is None
    assert bundle.target.tokenizer_path == bundle.tokenizer_path == root / "tokenizer.json"
    with bundle.target.open_fp16() as fp16, bundle.target.open_int4() as int4:
        assert fp16.array("layers.0.qkv").shape == (16, 32)
        assert int4.array("head.packed").dtype == np.uint8


def test_open_reads_no_weights(root: Path) -> None:
    """Opening costs the manifest: a weight file of the right size is not read."""
    path = root / "target/fp16.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert Bundle.open(root).target.architecture.num_layers == 2


def test_draft_model_with_its_own_tokenizer(tmp_path: Path, bundles: ModuleType) -> None:
    """A second model has files and a tokenizer of its own, so that load can compare vocabularies again."""
    draft = bundles.make_entry("draft", bundles.make_config(num_layers=1))
    root = bundles.make_bundle(tmp_path / "p", draft=draft, files={"draft/tokenizer.json": b"{}"})
    bundle = Bundle.open(root)
    assert isinstance(bundle.draft, BundleModel)
    assert [model.role for model in bundle.models] == ["target", "draft"]
    assert bundle.draft.fp16_path == root / "draft/fp16.safetensors"
    assert bundle.draft.tokenizer_path == root / "draft/tokenizer.json"


def test_no_draft(tmp_path: Path, bundles: ModuleType) -> None:
    """A bundle without a draft says how to get one."""
    bundle = Bundle.open(bundles.make_bundle(tmp_path / "p", draft=None))
    assert bundle.draft is None
    with pytest.raises(BundleError, match="--draft"):
        bundle.model("draft")


def test_graph_that_was_not_exported(root: Path) -> None:
    """An engine that needs another graph is told which there are."""
    with pytest.raises(BundleError, match=r"no fp16 graph, only \['fp32'\]"):
        Bundle.open(root).target.graph_path("fp16")


def test_not_a_bundle(tmp_path: Path) -> None:
    """Each kind of wrong path has its own advice."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.edgeprec.partial").mkdir()
    for name, message in (
        ("absent", "there is no bundle"),
        ("file", "it is a file"),
        ("folder", "no bundle.json"),
        ("cut.edgeprec", "--resume"),
    ):
        with pytest.raises(BundleError, match=message):
            Bundle.open(tmp_path / name)


def test_newer_schema_names_both_versions(root: Path) -> None:
    """A bundle of the future is refused by its version, whatever else it holds."""

    def change(values: dict[str, Any]) -> None:
        values.clear()
        values["schema_version"] = SCHEMA_VERSION + 6

    rewrite(root, change)
    with pytest.raises(BundleError, match=f"schema version {SCHEMA_VERSION + 6}.* up to {SCHEMA_VERSION}"):
        Bundle.open(root)


def test_newer_runtime_is_asked_for(root: Path) -> None:
    """A bundle may need a later EdgePrec within one schema."""
    rewrite(root, lambda values: values.update(minimum_runtime_version="99.1"))
    with pytest.raises(BundleError, match=r"needs EdgePrec 99\.1 or later"):
        Bundle.open(root)


NAMES = [
    "tokenizer.json",
    "generation.json",
    "calibration.json",
    "target/fp16.safetensors",
    "target/int4.safetensors",
    "target/model.fp32.onnx",
]


@pytest.mark.parametrize("name", NAMES)
def test_missing_file(root: Path, name: str) -> None:
    """A missing file is named before anything is loaded."""
    (root / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        Bundle.open(root)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_other_size(root: Path, name: str, change: int) -> None:
    """A file that was cut or grew is named with both sizes."""
    size = (root / name).stat().st_size
    os.truncate(root / name, size + change)
    with pytest.raises(BundleError, match=f"{name} has {size + change:,} bytes, expected {size:,}"):
        Bundle.open(root)


def test_any_flipped_bit_of_the_manifest_is_found(root: Path) -> None:
    """bundle.json carries its own digest: no changed byte of it passes unseen."""
    path = root / "bundle.json"
    good = path.read_bytes()
    for position in range(0, len(good), 47):
        path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        with pytest.raises(BundleError):
            Bundle.open(root)


@pytest.mark.parametrize("length", [0, 1, 100])
def test_truncated_manifest(root: Path, length: int) -> None:
    """A cut bundle.json is damaged, not empty."""
    path = root / "bundle.json"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BundleError, match=r"bundle\.json"):
        Bundle.open(root)


def change_target(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of the target's entry."""
    return lambda values: values["models"]["target"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(surprise=1), "unknown keys"),
        (lambda values: values.pop("files"), "no 'files'"),
        (lambda values: values["models"].update(third={}), "unknown keys"),
        (lambda values: values["models"].pop("target"), "no 'target'"),
        (lambda values: values["models"].update(draft={"sharing": {}}), "draft has no"),
        (lambda values: values["files"].pop("tokenizer.json"), "does not list 'tokenizer.json'"),
        (lambda values: values["files"].pop("target/int4.safetensors"), "does not list 'target/int4.safetensors'"),
        (lambda values: values["files"]["tokenizer.json"].update(sha256="no"), "sha256"),
        (lambda values: values["files"]["tokenizer.json"].update(bytes=-1), "'bytes' is -1"),
        (lambda values: values.update(minimum_runtime_version="soon"), "'soon'"),
        (change_target(graphs={"fp32": 3}), "graphs"),
        (change_target(errors=[{"layer": 0}]), "errors"),
        (change_target(architecture={"family": "gpt"}), "architecture"),
        (change_target(variants={}), "no 'fp16'"),
    ],
)
def test_manifest_of_another_shape(root: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    """Missing, unknown and wrong keys are errors, also where the digest is right."""
    rewrite(root, change)
    with pytest.raises(BundleError, match=message):
        Bundle.open(root)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a\\b", "a\0b", "", ".", "..", "bundle.json", "a\ud800"]
)
def test_listed_names_stay_inside(root: Path, name: str) -> None:
    """A manifest cannot name a file outside the bundle."""
    rewrite(root, lambda values: values["files"].update({name: {"bytes": 1, "sha256": "0" * 64}}))
    with pytest.raises(BundleError, match="could lie outside"):
        Bundle.open(root)


def test_path_gives_listed_files_only(root: Path) -> None:
    """A name that comes from elsewhere cannot reach further than the manifest."""
    bundle = Bundle.open(root)
    for name in ("../pair.edgeprec/tokenizer.json", "/etc/passwd", "bundle.json", "target"):
        with pytest.raises(BundleError, match="not listed"):
            bundle.path(name)


def test_link_out_of_the_bundle(root: Path, tmp_path: Path) -> None:
    """A link cannot stand in for a file: what it points at may change behind the bundle's back."""
    outside = tmp_path / "outside"
    (root / "tokenizer.json").rename(outside)
    (root / "tokenizer.json").symlink_to(outside)
    with pytest.raises(BundleError, match="link that leads out"):
        Bundle.open(root)


def test_a_linked_bundle_opens(root: Path, tmp_path: Path) -> None:
    """A link to the whole bundle is a fine way to name it."""
    (tmp_path / "current").symlink_to(root)
    assert Bundle.open(tmp_path / "current").draft == "self"


def test_weights_of_another_model(tmp_path: Path, root: Path, bundles: ModuleType) -> None:
    """A tensor file that does not fit the architecture is refused when it is opened."""
    other = bundles.make_bundle(tmp_path / "o", target=bundles.make_entry(config=bundles.make_config(num_layers=1)))
    data = (other / "target/fp16.safetensors").read_bytes()
    (root / "target/fp16.safetensors").write_bytes(data)
    with pytest.raises(BundleError, match=r"no tensor 'layers\.1"):
        Bundle.read_manifest(root).target.open_fp16()


def test_summary_has_sizes(root: Path) -> None:
    """``inspect --json`` starts from the manifest and adds where and how large."""
    summary = Bundle.open(root).to_summary()
    assert summary["bytes"] == sum(entry["bytes"] for entry in summary["files"].values())
    assert summary["path"] == str(root)
    assert summary["models"]["draft"] == {"sharing": {"all": "target"}}
