"""One trace file for all replies of a server: each adds its header, tokens, rounds and end once it is done."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from edgeprec.errors import ConfigError
from edgeprec.runtime.generation import Generation
from edgeprec.runtime.trace import TraceWriter

__all__ = ["TraceLog"]

_log = logging.getLogger(__name__)


class TraceLog:
    """Appends to a file. When that fails, as on a full disk, tracing ends with a warning and the server goes on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.note: str | None = None

    @classmethod
    def open(cls, path: Path) -> TraceLog:
        """Open the file to append to it.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            return cls(path.open("a", encoding="utf-8", buffering=1))
        except OSError as error:
            raise ConfigError(f"the trace {path} cannot be written: {error.strerror}") from error

    def write(self, generation: Generation, header: Mapping[str, Any]) -> None:
        """Add one ended generation."""
        if self.note is not None:
            return
        reply = generation.reply
        writer = TraceWriter(self._file, header)
        for event in reply.events:
            writer.token(event)
        for record in generation.rounds:
            writer.round(record)
        writer.end(reply)
        if writer.note is not None:
            self.note = writer.note
            _log.warning("tracing has ended, replies go on: %s", self.note)

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        try:
            self._file.close()
        except OSError as error:
            self.note = self.note or f"the trace ends early: {error.strerror or error}"
