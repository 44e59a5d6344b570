"""A file of benchmark results that loses nothing: written whole after every repeat, and gone on from."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeprec.bench_results import SCHEMA, SCHEMA_VERSION, lines_of
from edgeprec.errors import ConfigError

__all__ = ["ResultsFile", "key_of", "model_of", "read_objects", "read_results"]

Record = dict[str, Any]


def key_of(record: Record) -> Hashable:
    """Return what two records share that measure the same: program, models, way of decoding, texts and batch."""
    test = record["test"]
    asked = (test["kind"], test["prompt_set"], test["new_tokens"], test["sequences"])
    settings = tuple(record[name] for name in ("mode", "drafter", "draft_length", "three_level"))
    return (record["engine"], record["engine_device"], model_of(record["model"]), *settings, *asked)


def model_of(model: Record) -> Hashable:
    """Return what tells a record's models apart: names, and the blocks of their INT4."""
    return tuple(model.get(name) for name in ("name", "group_size", "draft", "draft_group_size"))


def read_objects(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the objects of a file of JSON lines, each with where it stands; a line that was cut off is left out.

    Raises:
        ConfigError: the file cannot be read, or is no text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}: expected lines of JSON") from error
    for number, line in enumerate(lines_of(text), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield f"{path}, line {number}", value


def read_results(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the results a file holds, each with where it stands, without those of other schemas.

    Raises:
        ConfigError: the file cannot be read, or a result lacks what it is known by.
    """
    for where, record in read_objects(path):
        if (record.get("schema"), record.get("schema_version")) != (SCHEMA, SCHEMA_VERSION):
            continue
        try:
            hash(key_of(record))
        except KeyError as error:
            raise ConfigError(f"{where}: the result has no field {error}, it is damaged: delete the line") from error
        except (TypeError, AttributeError) as error:
            raise ConfigError(
                f"{where}: a field of the result is not what it should be ({error}), it is damaged: delete the line"
            ) from error
        yield where, record


@dataclass(slots=True)
class ResultsFile:
    """The newest result of everything measured, kept in ``path``; None = in memory alone."""

    path: Path | None
    _records: dict[Hashable, Record] = field(init=False)

    def __post_init__(self) -> None:
        has_file = self.path is not None and self.path.exists()
        found = read_results(self.path) if self.path is not None and has_file else ()
        self._records = {key_of(record): record for _, record in found}

    @property
    def records(self) -> list[Record]:
        """Return all of them, the oldest first."""
        return list(self._records.values())

    def put(self, record: Record) -> None:
        """Take a result in, in place of an older one of the same; the file is never half written."""
        self._records[key_of(record)] = record
        if self.path is None:
            return
        aside = self.path.with_name(self.path.name + ".part")
        aside.write_text("".join(json.dumps(one) + "\n" for one in self.records), encoding="utf-8")
        os.replace(aside, self.path)
