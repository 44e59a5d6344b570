"""A rotated model computes the same function in weights that share no grid with the source's."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import edgeprec
from edgeprec.bundle import Bundle
from edgeprec.errors import BundleError, ConfigError
from edgeprec.export.bundle_checkpoint import open_bundle_checkpoint
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.rotate import random_rotation, rotate
from edgeprec.export.settings import ExportSettings

PLAIN = ExportSettings(quantizer=QuantizerSettings(method="rtn"))
TEXT = [5, 9, 200, 13, 13, 77, 31]


@pytest.fixture(scope="module")
def tiny_bundle(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of a tied model."""
    folder = tmp_path_factory.mktemp("rotate")
    source = checkpoints.make_checkpoint(folder / "source", "llama")
    return edgeprec.export_bundle(source, folder / "tiny.edgeprec", settings=PLAIN)


def fp16_logits(bundle: Path) -> np.ndarray:
    """Return FP16's logits after a few tokens."""
    with edgeprec.load(bundle, sensor="none", context_tokens=64) as session:
        return session.fp16_logits(TEXT)


@pytest.mark.parametrize(("size", "seed"), [(2, 0), (48, 0), (49, 7)])
def test_rotation_is_orthonormal_and_repeats(size: int, seed: int) -> None:
    """Lengths and angles stay, and a seed draws the same matrix again."""
    matrix = random_rotation(size, seed=seed)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-5)
    np.testing.assert_array_equal(matrix, random_rotation(size, seed=seed))
    assert np.abs(matrix - random_rotation(size, seed=seed + 1)).max() > 0.1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_function_stays(checkpoints: ModuleType, tmp_path: Path, family: str, tied: bool) -> None:
    """Norm scales, biases, norms inside heads and a tied head all come out the same."""
    source = checkpoints.make_checkpoint(tmp_path / "source", family, tied=tied, dtype="fp16", seed=4)
    plain = edgeprec.export_bundle(source, tmp_path / "plain.edgeprec", settings=PLAIN)
    rotated = edgeprec.api.export_rotated(source, tmp_path / "rotated.edgeprec", settings=PLAIN)
    expected, got = fp16_logits(plain), fp16_logits(rotated)
    difference = np.abs(expected - got)
    assert difference.max() < 0.02 * np.abs(expected).max(), (difference.max(), difference.mean())
    assert not Bundle.open(rotated).target.architecture.tied_embeddings


def test_no_weight_keeps_its_grid(tiny_bundle: Path) -> None:
    """Readers and writers of the residual both change, so a source of 4-bit weights is one no more."""
    source = open_checkpoint(str(tiny_bundle))
    turned = rotate(source, seed=3)
    for name in ("qkv", "o", "gate_up", "down"):
        before, after = source.linear(1, name), turned.linear(1, name)
        assert after.dtype == np.float16
        assert after.shape == before.shape
        assert np.abs(after.astype(np.float32) - before.astype(np.float32)).mean() > 0.01
    assert set(turned.norm(0, "input")) == set(turned.final_norm()) == {1.0}
    assert turned.head().shape == source.embedding().T.shape


def test_another_rotation_is_another_source(tiny_bundle: Path) -> None:
    """An unfinished export of one seed must not be continued with another."""
    source = open_checkpoint(str(tiny_bundle))
    assert set(rotate(source, seed=1).digest_sources()).isdisjoint(rotate(source, seed=2).digest_sources())


def test_a_rotated_copy_is_made_once(tiny_bundle: Path, tmp_path: Path) -> None:
    """The same copy is taken up again; one of other settings is refused, not overwritten."""
    output = tmp_path / "copy.edgeprec"
    made = edgeprec.api.export_rotated(tiny_bundle, output, settings=PLAIN)
    before = (made / "bundle.json").stat().st_mtime_ns
    assert edgeprec.api.export_rotated(tiny_bundle, output, settings=PLAIN) == made
    assert (made / "bundle.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError):
        edgeprec.api.export_rotated(tiny_bundle, output, seed=1, settings=PLAIN)


def test_a_bundle_can_be_exported_anew(tiny_bundle: Path, tmp_path: Path) -> None:
    """Another group size needs no source: the FP16 variant is the same, and nothing but INT4 changes."""
    coarse = ExportSettings(quantizer=QuantizerSettings(method="rtn", group_size=64))
    again = Bundle.open(edgeprec.export_bundle(tiny_bundle, tmp_path / "again.edgeprec", settings=coarse))
    assert again.target.entry.int4.group_size == 64
    assert again.target.fp16_path.read_bytes() == Bundle.open(tiny_bundle).target.fp16_path.read_bytes()
    np.testing.assert_array_equal(fp16_logits(again.root), fp16_logits(tiny_bundle))


def test_a_damaged_bundle_is_no_checkpoint(tiny_bundle: Path, tmp_path: Path) -> None:
    """What is missing is named like in any other use of the bundle."""
    (tmp_path / "bundle.json").write_bytes((tiny_bundle / "bundle.json").read_bytes())
    with pytest.raises(BundleError, match="missing from the bundle"):
        open_bundle_checkpoint(tmp_path)
