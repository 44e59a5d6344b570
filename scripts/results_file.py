"""A file of benchmark results that loses nothing: written whole after every repeat, and gone on from."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeprec.bench_results import SCHEMA, SCHEMA_VERSION

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


def read_objects(path: Path) -> Iterator[Record]:
    """Yield the objects of a file of JSON lines; a line that was cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def read_results(path: Path) -> Iterator[Record]:
    """Yield the results a file holds, without those of other schemas."""
    wanted = (SCHEMA, SCHEMA_VERSION)
    return (record for record in read_objects(path) if (record.get("schema"), record.get("schema_version")) == wanted)


@dataclass(slots=True)
class ResultsFile:
    """The newest result of everything measured, kept in ``path``; None = in memory alone."""

    path: Path | None
    _records: dict[Hashable, Record] = field(init=False)

    def __post_init__(self) -> None:
        has_file = self.path is not None and self.path.exists()
        found = read_results(self.path) if self.path is not None and has_file else ()
        self._records = {key_of(record): record for record in found}

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
