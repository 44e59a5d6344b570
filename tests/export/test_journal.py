"""The journal: steps come back as they were written, and only those whose bytes are still there count."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgeprec.errors import ConfigError
from edgeprec.export.journal import Journal, StepEntry, WriteEntry


def write_entry(folder: Path, data: bytes = b"0123456789", offset_bytes: int = 3, length_bytes: int = 4) -> WriteEntry:
    """Write a file and return the entry of a range of it."""
    (folder / "file").write_bytes(data)
    digest = hashlib.sha256(data[offset_bytes : offset_bytes + length_bytes]).hexdigest()
    return WriteEntry("file", offset_bytes, length_bytes, digest)


def fill(path: Path, *steps: StepEntry) -> None:
    """Write a journal."""
    journal = Journal(path, fingerprint="f")
    assert journal.open() == ()
    for step in steps:
        journal.append(step)
    journal.close()


def reopen(path: Path) -> tuple[StepEntry, ...]:
    """Read a journal as a resumed export does."""
    journal = Journal(path, fingerprint="f")
    steps = journal.open()
    journal.close()
    return steps


def steps_of(folder: Path) -> tuple[StepEntry, StepEntry]:
    """Return two steps, one of which wrote something."""
    return StepEntry("a", (write_entry(folder),), {"error": 1 / 3, "text": "grün\u2028"}), StepEntry("b", (), {})


def test_steps_come_back(tmp_path: Path) -> None:
    """Names, ranges and kept values are the same after a resume, to the last bit of a float."""
    steps = steps_of(tmp_path)
    fill(tmp_path / "j", *steps)
    assert reopen(tmp_path / "j") == steps


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_cut_line_costs_that_step_only(tmp_path: Path, cut: int) -> None:
    """Wherever the last line ends early, the steps before it stay and the next one is appended cleanly."""
    first, second = steps_of(tmp_path)
    fill(tmp_path / "j", first, second)
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-cut])
    journal = Journal(tmp_path / "j", fingerprint="f")
    assert journal.open() == (first,)
    journal.append(second)
    journal.close()
    assert (tmp_path / "j").read_bytes() == data


def test_a_cut_first_line_begins_anew(tmp_path: Path) -> None:
    """A journal that was killed at its very beginning holds nothing."""
    (tmp_path / "j").write_bytes(b'{"journal":1,"finger')
    assert reopen(tmp_path / "j") == ()
    assert (tmp_path / "j").read_bytes() == b'{"journal":1,"fingerprint":"f"}\n'


def test_another_fingerprint(tmp_path: Path) -> None:
    """A journal of other settings is refused and left as it is."""
    fill(tmp_path / "j")
    with pytest.raises(ConfigError, match="other settings"):
        Journal(tmp_path / "j", fingerprint="g").open()
    assert reopen(tmp_path / "j") == ()


def test_exists(tmp_path: Path) -> None:
    """An empty file is no journal yet."""
    journal = Journal(tmp_path / "j", fingerprint="f")
    assert not journal.exists()
    (tmp_path / "j").touch()
    assert not journal.exists()
    fill(tmp_path / "j")
    assert journal.exists()


@pytest.mark.parametrize(
    ("data", "is_intact"),
    [
        (b"0123456789", True),
        (b"xxx3456xxx", True),  # only the range counts
        (b"0123456", True),
        (b"012345", False),
        (b"0123x56789", False),
        (b"", False),
        (None, False),
    ],
)
def test_intact_means_the_bytes_of_the_range(tmp_path: Path, data: bytes | None, is_intact: bool) -> None:
    """A step is believed as long as the bytes it wrote are there, whatever lies around them."""
    entry = write_entry(tmp_path)
    (tmp_path / "file").unlink()
    if data is not None:
        (tmp_path / "file").write_bytes(data)
    assert entry.is_intact(tmp_path) is is_intact
