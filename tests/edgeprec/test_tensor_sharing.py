"""A draft finds what it shares in the target's files, and nothing else there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.bundle import Bundle, BundleModel
from edgeprec.bundle_schema import BundleManifest
from edgeprec.bundle_verify import verify_bundle
from edgeprec.errors import BundleError
from edgeprec.tensor_file import TensorFile
from edgeprec.tensor_sharing import find_tensor, shared_tensors


def make_pair(tmp_path: Path, bundles: ModuleType, *, tied: bool, **sharing: bool) -> BundleModel:
    """Return the draft of a new bundle; it has one layer, the target two."""
    config = bundles.make_config(tied_embeddings=tied)
    draft = bundles.make_entry("draft", replace(config, num_layers=1), **sharing)
    root = bundles.make_bundle(tmp_path / "pair", draft=draft, target=bundles.make_entry("target", config))
    return Bundle.open(root).model("draft")


def owner(model: BundleModel, name: str) -> str:
    """Return the folder a tensor lies in and whether it counts as shared."""
    home = find_tensor(model, name)
    return f"{home.path.parent.name}/{home.path.name} {'shared' if home.is_shared else 'own'}"


def test_shared_tensors_lie_in_the_targets_files(tmp_path: Path, bundles: ModuleType) -> None:
    """Embedding and both variants of the head come from the target, layers from the draft."""
    draft = make_pair(tmp_path, bundles, tied=False, shares_embedding=True, shares_head=True)
    assert owner(draft, "embed") == owner(draft, "head") == "target/fp16.safetensors shared"
    assert owner(draft, "head.packed") == owner(draft, "head.scales") == "target/int4.safetensors shared"
    assert owner(draft, "layers.0.qkv") == owner(draft, "final_norm") == "draft/fp16.safetensors own"
    assert owner(draft, "layers.0.down.packed") == "draft/int4.safetensors own"
    assert [spec.name for spec in shared_tensors(draft)] == ["embed", "head", "head.packed", "head.scales"]


def test_values_are_the_targets(tmp_path: Path, bundles: ModuleType) -> None:
    """What is found can be read, and is what the target reads."""
    draft = make_pair(tmp_path, bundles, tied=True, shares_embedding=True, shares_head=True)
    home = find_tensor(draft, "embed")
    with TensorFile.open(home.path) as file, draft.bundle.target.open_fp16() as whole:
        np.testing.assert_array_equal(file.array(home.spec.name), whole.array("embed"))
        assert file.array(home.spec.name).shape == home.spec.shape


def test_a_draft_sees_only_what_it_shares(tmp_path: Path, bundles: ModuleType) -> None:
    """The target's second layer is not the draft's, though its file has it; a tied model has no tensor head."""
    draft = make_pair(tmp_path, bundles, tied=True, shares_embedding=True, shares_head=True)
    for name in ("layers.1.qkv", "layers.1.qkv.packed", "head", "nonsense"):
        with pytest.raises(BundleError, match=f"the draft has no tensor {name!r}"):
            find_tensor(draft, name)


def test_without_sharing_everything_is_the_models_own(tmp_path: Path, bundles: ModuleType) -> None:
    """A draft with whole files and the target itself read nothing from each other."""
    draft = make_pair(tmp_path, bundles, tied=False)
    assert owner(draft, "embed") == owner(draft, "head") == "draft/fp16.safetensors own"
    assert shared_tensors(draft) == shared_tensors(draft.bundle.target) == ()
    assert owner(draft.bundle.target, "head.packed") == "target/int4.safetensors own"


def test_embedding_alone(tmp_path: Path, bundles: ModuleType) -> None:
    """A draft may share the embedding and keep an INT4 head of its own."""
    draft = make_pair(tmp_path, bundles, tied=True, shares_embedding=True)
    assert owner(draft, "embed") == "target/fp16.safetensors shared"
    assert owner(draft, "head.packed") == "draft/int4.safetensors own"


def test_verify_counts_what_is_shared_once(tmp_path: Path, bundles: ModuleType) -> None:
    """A sharing draft's files are whole without embedding and head, and smaller by them."""
    sharing = make_pair(tmp_path, bundles, tied=False, shares_embedding=True, shares_head=True)
    whole = make_pair(tmp_path / "whole", bundles, tied=False)
    assert verify_bundle(sharing.bundle).is_ok
    saved = whole.bundle.size_bytes - sharing.bundle.size_bytes
    assert saved >= sum(spec.num_bytes for spec in shared_tensors(sharing))


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        ({}, {"vocab_size": 22}, "vocab_size 22, the target has 21"),
        ({}, {"hidden_size": 32}, "hidden_size 32, the target has 16"),
        ({}, {"tied_embeddings": False}, "tied_embeddings False, the target has True"),
        ({"shares_embedding": False}, {}, "shares the head without the embedding"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(
    bundles: ModuleType, changes: dict[str, Any], shape: dict[str, Any], message: str
) -> None:
    """A draft cannot share with a target of another shape; reading says what differs."""
    sharing = {"shares_embedding": True, "shares_head": True} | changes
    draft = bundles.make_entry("draft", bundles.make_config(num_layers=1, **shape), **sharing)
    with pytest.raises(BundleError, match=message):
        BundleManifest.from_bytes(bundles.make_manifest(draft=draft).to_bytes(), where="bundle.json")


def test_int4_of_a_shared_head_is_alike(bundles: ModuleType) -> None:
    """One graph has one INT4 group size: a shared head of another is refused."""
    draft = bundles.make_entry("draft", shares_embedding=True, shares_head=True)
    draft = replace(draft, int4=replace(draft.int4, group_size=64))
    with pytest.raises(BundleError, match="INT4 group_size 64, the target has 32"):
        BundleManifest.from_bytes(bundles.make_manifest(draft=draft).to_bytes(), where="bundle.json")


def test_a_target_shares_nothing(bundles: ModuleType) -> None:
    """Only a draft can leave tensors to the other model."""
    target = bundles.make_entry("target", shares_embedding=True)
    with pytest.raises(BundleError, match="the target claims to share"):
        BundleManifest.from_bytes(bundles.make_manifest(target=target).to_bytes(), where="bundle.json")


def test_sharing_with_a_stranger_is_refused(bundles: ModuleType) -> None:
    """The only owner the format knows is the target."""
    values = bundles.make_entry("draft", shares_embedding=True).to_json()
    values["sharing"]["embedding"] = "elsewhere"
    with pytest.raises(BundleError, match="shared with 'elsewhere', expected 'target'"):
        type(bundles.make_entry()).from_json(values, where="bundle.json: draft")
