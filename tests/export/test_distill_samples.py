"""Which positions of a sequence are learned, and the file they come back from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import disk
from edgeprec.export.distill_samples import Samples

TOKENS = np.array([[7, 8, 9, 2, 5], [7, 7, 7, 7, 7], [2, 8, 2, 2, 2]], np.int32)


def replies() -> Samples:
    """Return three replies behind prompts of 2, 3 and 1 tokens; 2 ends a reply."""
    return Samples.of_replies(TOKENS, np.array([2, 3, 1], np.int32), frozenset({2}))


def test_replies_are_learned_from_their_prompt_to_their_end() -> None:
    """The last prompt token predicts the first of the reply; what follows an end token counts for nothing."""
    expected = [
        [False, True, True, False, False],  # 8 -> 9, 9 -> 2
        [False, False, True, True, False],  # no end: to the last token
        [True, True, False, False, False],  # an end token in the prompt does not count
    ]
    assert replies().mask().tolist() == expected
    assert replies().learned_tokens == 6


def test_a_text_is_cut_into_rows() -> None:
    """Every position is learned; a rest shorter than a row is left out."""
    samples = Samples.of_text(np.arange(11, dtype=np.int32), 4)
    assert samples.tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert samples.mask().tolist() == [[True, True, True, False]] * 2
    assert len(Samples.of_text(np.arange(3, dtype=np.int32), 4)) == 0


def test_rows_and_joins_keep_rows_together() -> None:
    """Tokens and masks move as one."""
    joined = Samples.join([replies().rows(slice(1, 3)), replies().rows(np.array([0]))])
    assert joined.tokens.tolist() == [TOKENS[1].tolist(), TOKENS[2].tolist(), TOKENS[0].tolist()]
    assert joined.mask().tolist() == [replies().mask()[index].tolist() for index in (1, 2, 0)]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    """Bit for bit."""
    replies().save(tmp_path / "samples.safetensors")
    again = Samples.load(tmp_path / "samples.safetensors")
    for name in Samples.__slots__:
        np.testing.assert_array_equal(getattr(again, name), getattr(replies(), name))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Cut short, it is refused with what to do."""
    path = tmp_path / "samples.safetensors"
    replies().save(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"is damaged .* delete it"):
        Samples.load(path)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half file lies under the name."""

    def full(descriptor: int, data: memoryview, *, offset_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(EdgePrecError, match="the disk is full"):
        replies().save(tmp_path / "samples.safetensors")
    assert not (tmp_path / "samples.safetensors").exists()
