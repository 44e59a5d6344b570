"""Where the results of ``bench`` go: each as soon as it is there, so that what breaks off later costs nothing."""

from __future__ import annotations

import csv
import io
import json
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
from edgeprec.errors import ConfigError

__all__ = ["Output", "open_output", "opened_file", "to_line"]

Record = Mapping[str, Any]
Write = Callable[[str], object]


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
    write = _writer(sys.stdout)
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
    """
    if path is None:
        yield lambda _record: None
        return
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise ConfigError(f"--save {path} cannot be written: {error.strerror}") from error
    with file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")
        yield lambda record: _write_all(file, to_line(record).encode())


def to_line(record: Record) -> str:
    """Return a record as one line of JSON."""
    return json.dumps(finite(record), ensure_ascii=False, allow_nan=False) + "\n"


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _writer(stream: TextIO) -> Write:
    """Return what writes to standard output and flushes.

    A bar on the terminal takes ``sys.stdout`` over to keep its place: right for a terminal, wrong for a pipe.
    """

    def write(text: str) -> None:
        target = sys.stdout if stream.isatty() else stream
        target.write(text)
        target.flush()

    return write


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
        self._write(to_line(record))

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
        self._write(to_line({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "results": self._records}))
