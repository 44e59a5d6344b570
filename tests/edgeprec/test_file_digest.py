"""Digests in pieces are the digests of the whole, and progress counts every byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeprec import file_digest
from edgeprec.file_digest import file_sha256, range_sha256


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read seven bytes at a time."""
    monkeypatch.setattr(file_digest, "_CHUNK_BYTES", 7)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [0, 1, 7, 8, 100])
def test_whole_file(tmp_path: Path, size: int) -> None:
    """The digest does not depend on the pieces, and progress ends with the size."""
    data = bytes(range(size))
    (tmp_path / "x").write_bytes(data)
    told: list[int] = []
    assert file_sha256(tmp_path / "x", on_bytes=told.append) == hashlib.sha256(data).hexdigest()
    assert sum(told) == size


@pytest.mark.usefixtures("small_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(0, 60), length=st.integers(0, 60))
def test_range(tmp_path: Path, offset: int, length: int) -> None:
    """A range is digested up to its end or the file's."""
    data = bytes(range(50))
    (tmp_path / "x").write_bytes(data)
    expected = hashlib.sha256(data[offset : offset + length]).hexdigest()
    assert range_sha256(tmp_path / "x", offset_bytes=offset, length_bytes=length) == expected
