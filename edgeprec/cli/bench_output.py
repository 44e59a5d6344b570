"""Where the results of ``bench`` go: each as soon as it is there, so that what breaks off later costs nothing."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from edgeprec.bench_results import SCHEMA, SCHEMA_VERSION
from edgeprec.cli.bench_columns import CSV_COLUMNS, csv_values, table_columns
from edgeprec.cli.json_output import finite
from edgeprec.cli.render import visible
from edgeprec.errors import ConfigError, EdgePrecError

__all__ = ["Output", "open_output", "opened_file", "shows_bars", "to_line"]

Record = Mapping[str, Any]
Write = Callable[[str], object]
_log = logging.getLogger(__name__)


class Output(Protocol):
    """Takes records one by one."""

    def add(self, record: Record) -> None:
        """Show or keep a record."""
        ...

    def close(self) -> None:
        """Write what stands at the end."""
        ...


def open_output(name: str, *, has_energy: bool) -> Output:
    """Return the output of one format, on standard output."""
    write = _writer(sys.stdout, is_read_by_people=name == "md")
    if name == "md":
        return _Table(write, has_energy=has_energy)
    if name == "csv":
        return _Csv(write)
    return _Object(write) if name == "json" else _Lines(write)


@contextmanager
def opened_file(path: Path | None) -> Iterator[Callable[[Record], None]]:
    """Give a function that appends a record to a file as one line. A line cut off by a crash is left on its own.

    Raises:
        ConfigError: the file cannot be written.
        EdgePrecError: at the end, some records could not be; everything else went on.
    """
    if path is None:
        yield lambda _record: None
        return
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(path, error) from error
    saved = _SavedLines(path, file)
    with file:
        saved.begin()
        yield saved.add
    if saved.error is not None:
        raise EdgePrecError(
            f"--save {path} lacks {saved.missing} of {saved.count} results ({saved.error.strerror}): make room there, "
            "and take them from the output"
        ) from saved.error


class _SavedLines:
    """Appends records to a file. After the first failure it writes no more: half a line is enough."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self.error: OSError | None = None
        self.count = 0
        self.missing = 0
        self._path = path
        self._file = file

    def begin(self) -> None:
        """Go to the end, and on to a line of its own."""
        try:
            size = self._file.seek(0, os.SEEK_END)
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
                self._file.write(b"\n")
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def add(self, record: Record) -> None:
        """Write a record; a failure is told once and costs no other output."""
        self.count += 1
        try:
            if self.error is None:
                _write_all(self._file, to_line(record).encode())
        except OSError as error:
            self.error = error
            _log.warning("--save %s cannot be written: %s; results are printed only", self._path, error.strerror)
        self.missing += self.error is not None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    reason = "it is no file that lines can be appended to" if error.errno is None else error.strerror
    return ConfigError(f"--save {path} cannot be written: {reason}")


def shows_bars(name: str) -> bool:
    """Whether bars may show beside this format: on one terminal they would break the lines a program reads."""
    return name == "md" or not sys.stdout.isatty()


def to_line(record: Record, *, is_ascii: bool = False) -> str:
    """Return a record as one line of JSON; lone surrogates, which a server may send, are escaped as JSON allows."""
    line = json.dumps(finite(record), ensure_ascii=is_ascii, allow_nan=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        return to_line(record, is_ascii=True)
    return line + "\n"


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _writer(stream: TextIO, *, is_read_by_people: bool) -> Write:
    """Return what writes to standard output and flushes.

    A bar on the terminal takes ``sys.stdout`` over to keep its place, and breaks lines at the terminal's width: right
    for people, wrong for a program.
    """

    def write(text: str) -> None:
        target = sys.stdout if is_read_by_people and stream.isatty() else stream
        target.write(text)
        target.flush()

    return write


def _printed(record: Record) -> str:
    """Return a record's line in letters that standard output has."""
    return to_line(record, is_ascii=not (sys.stdout.encoding or "").lower().startswith("utf"))


class _Table:
    """A Markdown table, row by row."""

    def __init__(self, write: Write, *, has_energy: bool) -> None:
        self._write = write
        self._columns = table_columns(has_energy=has_energy)
        self._is_begun = False

    def add(self, record: Record) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._row([column.header for column in self._columns])
            rules = ("-" * (column.width - 1) + (":" if column.is_number else "-") for column in self._columns)
            self._write("| " + " | ".join(rules) + " |\n")
        self._row([visible(column.cell(record)).replace("|", "\\|") for column in self._columns])

    def close(self) -> None:
        """A table has no end."""

    def _row(self, cells: list[str]) -> None:
        aligned = (
            f"{cell:>{column.width}}" if column.is_number else f"{cell:<{column.width}}"
            for cell, column in zip(cells, self._columns, strict=True)
        )
        self._write("| " + " | ".join(aligned) + " |\n")


class _Csv:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._is_begun = False

    def add(self, record: Record) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._is_begun:
            self._is_begun = True
            writer.writerow(CSV_COLUMNS)
        writer.writerow(csv_values(record))
        self._write(text.getvalue())

    def close(self) -> None:
        """Nothing stands at the end."""


class _Lines:
    def __init__(self, write: Write) -> None:
        self._write = write

    def add(self, record: Record) -> None:
        self._write(_printed(record))

    def close(self) -> None:
        """Nothing stands at the end."""


class _Object:
    """One object with all records, printed at the end, however that comes."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        self._records.append(record)

    def close(self) -> None:
        self._write(_printed({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "results": self._records}))
