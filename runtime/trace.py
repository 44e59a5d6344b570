"""The trace of a generation: one JSON object a line, written as it happens.

The first line is a header (``type`` header, ``schema_version``, then what the caller gives). After it come lines of
type ``token`` (a ``TokenEvent``) and ``round`` (a ``RoundRecord``), then the ``power`` of the whole generation (each
sample's rails in milliwatts and their total) and a last one, ``end``. Times are nanoseconds since the start of the
generation; a number that is not finite is null. Every line is flushed, so a trace is whole up to the moment a process
dies.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from edgeprec.errors import ConfigError
from edgeprec.runtime.reply import Reply, RoundRecord, TokenEvent

__all__ = ["SCHEMA_VERSION", "TraceWriter"]

SCHEMA_VERSION = 1
_log = logging.getLogger(__name__)


class TraceWriter:
    """Writes a trace. A write that fails ends the trace, never the generation: ``note`` then says why."""

    def __init__(self, file: TextIO, header: Mapping[str, Any]) -> None:
        self._file = file
        self.note: str | None = None
        self._write("header", {"schema_version": SCHEMA_VERSION, **header})

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any]) -> TraceWriter:
        """Begin a trace at ``path``.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"the trace {path} cannot be written: {error.strerror}") from error
        return cls(file, header)

    def token(self, event: TokenEvent) -> None:
        """Write one emitted token."""
        self._write("token", asdict(event))

    def round(self, record: RoundRecord) -> None:
        """Write one decoding round."""
        self._write("round", asdict(record))

    def power(self, *, time_ns: int, milliwatts: Mapping[str, float | None], total_mw: float | None) -> None:
        """Write the power of every rail and of the total at one moment; None where it was not measured."""
        self._write("power", {"time_ns": time_ns, "milliwatts": dict(milliwatts), "total_mw": total_mw})

    def end(self, reply: Reply) -> None:
        """Write how the generation ended."""
        summary = reply.to_json()
        self._write("end", {name: summary[name] for name in ("finish_reason", "token_sha256", "stats")})

    def close(self) -> None:
        """Close the file; calling it twice is harmless."""
        try:
            self._file.close()
        except OSError as error:
            self._stop(error)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if self.note is not None:
            return
        line = json.dumps({"type": kind, **_finite(values)}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        if self.note is None:
            self.note = f"the trace ends early: {error.strerror or error}"
            _log.warning("%s", self.note)


def _finite(value: Any) -> Any:
    """Return ``value`` with None in place of numbers JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
