"""A worker's other end: starts ``cpu_worker.py`` in a Python that has its package, asks it, ends it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Self

from edgeprec.errors import EngineError

__all__ = ["PeerProcess"]

_WORKER = Path(__file__).with_name("cpu_worker.py")
_WAIT_S = 10.0


class PeerProcess:
    """A worker of one kind; ``settings`` are those ``cpu_worker.py`` takes. Its first lines come on entering."""

    def __init__(self, python: str, settings: Mapping[str, Any]) -> None:
        self.kind = str(settings["kind"])
        self.versions: dict[str, str] = {}
        self._command = [python, str(_WORKER), json.dumps(settings)]
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until its model is loaded.

        Raises:
            EngineError: it ended instead; what it wrote stands in the message. Or there is no such Python.
        """
        self._log = TemporaryFile("w+", encoding="utf-8")
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._log, text=True)
        except OSError as error:
            self._log.close()
            python = self._command[0]
            raise EngineError(f"cannot start {python}: {error.strerror}; give a Python that has the package") from error
        self.versions = self._read()["versions"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, way: str, prompt: tuple[int, ...], new_tokens: int) -> dict[str, Any]:
        """Return its answer to a prompt.

        Raises:
            EngineError: it ended instead.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        request = {"way": way, "prompt": list(prompt), "new_tokens": new_tokens}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reading says why
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        written = self._end()
        raise EngineError(f"the worker {self.kind} ended: {written[-1][:300] if written else 'it wrote nothing'}")

    def _end(self) -> list[str]:
        """Close its input, which ends it, and return the lines it wrote beside its answers; harmless when it ended."""
        process, self._process = self._process, None
        if process is None or self._log is None:
            return []
        with suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        self._log.close()
        return lines
