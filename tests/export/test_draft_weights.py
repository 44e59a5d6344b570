"""A draft's linears in four bits: what lies on a grid comes back to the bit, what does not stays FP16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save_file

from edgeprec.errors import ConfigError
from edgeprec.export.distill_int4 import round_to_int4
from edgeprec.export.draft_weights import Int4GridSource, pack_on_grid
from edgeprec.export.safetensors_file import SafetensorsSource


def on_grid(outputs: int, inputs: int, *, group_size: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return normal values as training rounds them."""
    drawn = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.03
    rounded: npt.NDArray[np.float32] = round_to_int4(drawn, group_size=group_size).numpy()
    return rounded


def source_of(folder: Path, tensors: dict[str, npt.NDArray[np.generic]]) -> Int4GridSource:
    """Write a file and open it."""
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return Int4GridSource(SafetensorsSource.open([path], origin=str(folder)), (path,))


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("seed", range(4))
def test_a_trained_linear_comes_back_to_the_bit(tmp_path: Path, group_size: int, seed: int) -> None:
    """In 4.5 bits a weight at 32, whichever rows are asked for."""
    values = on_grid(48, 256, group_size=group_size, seed=seed)
    packed = pack_on_grid(values, group_size=group_size)
    assert packed is not None
    assert sum(part.nbytes for part in packed.values()) == 48 * 256 // 2 + 2 * 48 * 256 // group_size
    source = source_of(
        tmp_path, {"a.weight" + end: part for end, part in packed.items()} | {"n": np.ones(3, np.float16)}
    )
    assert source.names == {"a.weight", "n"}
    assert source.shape("a.weight") == (48, 256)
    np.testing.assert_array_equal(source.read_rows("a.weight", 7, 31), values.astype(np.float16)[7:31])
    np.testing.assert_array_equal(source.read_rows("n", 0, 3), np.ones(3, np.float16))


def test_extremes_and_zeros_come_back() -> None:
    """A block of zeros, one of a single spike either way, and both ends of the range."""
    values = np.zeros((4, 32), np.float32)
    values[1, 5], values[2, 6] = 0.75, -0.75
    values[3, :16] = np.arange(-8, 8, dtype=np.float32) / 128
    assert pack_on_grid(values, group_size=32) is not None


def test_other_values_are_left_to_fp16() -> None:
    """No grid, or inputs that are no whole number of groups."""
    drawn = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    assert pack_on_grid(drawn, group_size=32) is None
    assert pack_on_grid(on_grid(8, 48, group_size=32), group_size=32) is None


def test_levels_without_their_scales_are_refused(tmp_path: Path) -> None:
    """Scales that are missing, or those of another linear, are told by name."""
    packed = pack_on_grid(on_grid(8, 64, group_size=32), group_size=32)
    assert packed is not None
    source = source_of(tmp_path, {"a.weight.int4": packed[".int4"]})
    with pytest.raises(ConfigError, match=r"no tensor a\.weight\.scales"):
        source.read_rows("a.weight", 0, 8)
    (tmp_path / "b").mkdir()
    source = source_of(
        tmp_path / "b", {"a.weight.int4": packed[".int4"], "a.weight.scales": np.ones((8, 3), np.float16)}
    )
    with pytest.raises(ConfigError, match="of one linear"):
        source.read_rows("a.weight", 0, 8)


def test_levels_that_are_no_matrix_are_refused(tmp_path: Path) -> None:
    """A damaged file is told by name before anything is read."""
    source = source_of(tmp_path, {"a.weight.int4": np.zeros(8, np.uint8), "a.weight.scales": np.ones(1, np.float16)})
    with pytest.raises(ConfigError, match=r"a\.weight\.int4 is \[8\], expected a matrix"):
        source.shape("a.weight")
