"""What an export has finished: one JSON line per step, with a digest of every range of bytes the step wrote.

A step counts as done only while its bytes are still on the disk. A last line that a kill cut short is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.export.disk import write_at
from edgeprec.file_digest import range_sha256

__all__ = ["Journal", "StepEntry", "WriteEntry"]

_VERSION = 1
_STEP_KEYS = {"name", "writes", "stored"}


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """A range of a file, by its path in the transaction's folder."""

    path: str
    offset_bytes: int
    length_bytes: int
    sha256: str

    def is_intact(self, folder: Path) -> bool:
        """Return whether the bytes are still there."""
        path = folder / self.path
        if not path.is_file():
            return False
        return self.sha256 == range_sha256(path, offset_bytes=self.offset_bytes, length_bytes=self.length_bytes)


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A finished step: its name, what it wrote, and the small results it kept."""

    name: str
    writes: tuple[WriteEntry, ...]
    stored: dict[str, Any]


class Journal:
    """An append-only file of steps; the first line holds the fingerprint of the export."""

    def __init__(self, path: Path, *, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._descriptor = -1
        self._size = 0

    def exists(self) -> bool:
        """Return whether an earlier run began this journal."""
        return self._path.is_file() and self._path.stat().st_size > 0

    def open(self) -> tuple[StepEntry, ...]:
        """Begin a journal or continue the one there is; return the finished steps.

        Raises:
            ConfigError: the journal is of an export with another fingerprint.
        """
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        text = self._path.read_bytes()
        lines = list(_whole_lines(text))
        if lines:
            self._check_head(lines[0])
        self._size = sum(len(line) for line in lines)
        os.ftruncate(self._descriptor, self._size)
        if not lines:
            self._append({"journal": _VERSION, "fingerprint": self._fingerprint})
        return tuple(_step(json.loads(line)) for line in lines[1:])

    def append(self, step: StepEntry) -> None:
        """Record a finished step; its bytes must be on the disk already."""
        self._append(asdict(step))

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, values: dict[str, Any]) -> None:
        line = (json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n").encode()
        write_at(self._descriptor, memoryview(line), offset_bytes=self._size)
        os.fdatasync(self._descriptor)
        self._size += len(line)

    def _check_head(self, line: bytes) -> None:
        head = json.loads(line)
        if head.get("journal") != _VERSION or head.get("fingerprint") != self._fingerprint:
            raise ConfigError(
                f"the unfinished export in {self._path.parent} was made from another source or with other settings: "
                "repeat it as it was, delete that folder, or choose another one with -o"
            )


def _whole_lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines up to the first that is cut short or unreadable."""
    for line in text.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        try:
            values = json.loads(line)
        except ValueError:
            return
        if not isinstance(values, dict) or not ("journal" in values or values.keys() == _STEP_KEYS):
            return
        yield line


def _step(values: dict[str, Any]) -> StepEntry:
    writes = tuple(WriteEntry(**write) for write in values["writes"])
    return StepEntry(values["name"], writes, values["stored"])
