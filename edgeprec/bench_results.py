"""Reads the lines of ``edgeprec bench -o jsonl``: what a projection needs of them, by configuration.

Fields that are not needed are not looked at, so that a newer minor addition does not matter; another schema is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgeprec.errors import ConfigError
from edgeprec.projection import Measured, Value
from edgeprec.result_fields import ResultFields
from edgeprec.sweep_settings import (
    Settings,
    configuration_of,
    configuration_settings,
    distinct_names,
    meter_settings,
)

__all__ = ["SCHEMA", "SCHEMA_VERSION", "Sweep", "lines_of", "read_sweeps"]

SCHEMA = "edgeprec.bench"
SCHEMA_VERSION = 1
_DECODING = ("tg", "prompts")
_MOST_REASONS = 3


@dataclass(slots=True, kw_only=True)
class Sweep:
    """All batches measured of one configuration. ``left_out`` says which results cannot be used, and why."""

    name: str
    settings: Settings
    points: dict[int, Measured] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    broken_off: set[int] = field(default_factory=set)  # batches whose repeats did not all run

    @property
    def measured(self) -> list[Measured]:
        """Return the batches in order."""
        return [self.points[batch] for batch in sorted(self.points)]


@dataclass(slots=True)
class _Configuration:
    """The sweeps of what was run in one way, one for each meter, and what no meter measured."""

    name: str
    settings: Settings
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def whole_sweeps(self) -> Iterator[Sweep]:
        """Yield the sweeps; one without a batch where nothing was measured."""
        for sweep in self.sweeps.values() or [Sweep(name=self.name, settings=self.settings)]:
            sweep.left_out = self.left_out + sweep.left_out
            yield sweep


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a file of JSON; texts inside may hold what else ends a line in Unicode, such as U+2028."""
    return (line.removesuffix("\r") for line in text.split("\n"))


def read_sweeps(text: str, *, where: str) -> tuple[list[Sweep], list[str]]:
    """Return the sweeps of a results file, and remarks on lines that are left out.

    Of two results of one batch the later counts, unless it broke off and the earlier one did not.

    Raises:
        ConfigError: a line is of another schema, or no line is a result of decoding.
    """
    found: dict[str, _Configuration] = {}
    remarks: list[str] = []
    for number, line in enumerate(lines_of(text), start=1):
        if not line.strip():
            continue
        record = _parse(line, f"{where}, line {number}", remarks)
        try:
            if record is not None and record.text("test", "kind") in _DECODING:
                _add(found, record, number)
        except ConfigError as error:
            remarks.append(f"{error}, and is left out")
    if not found:
        reasons = f" ({_some(remarks)})" if remarks else ""
        raise ConfigError(f"{where} holds no result of decoding: write one with edgeprec bench -o jsonl{reasons}")
    sweeps = [sweep for configuration in found.values() for sweep in configuration.whole_sweeps()]
    names = distinct_names([sweep.name for sweep in sweeps], [sweep.settings for sweep in sweeps])
    for sweep, name in zip(sweeps, names, strict=True):
        sweep.name = name
    return sweeps, remarks


def _some(remarks: Sequence[str]) -> str:
    rest = len(remarks) - _MOST_REASONS
    return "; ".join(remarks[:_MOST_REASONS]) + (f"; and {rest} lines more" if rest > 0 else "")


def _parse(line: str, where: str, remarks: list[str]) -> ResultFields | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        remarks.append(f"{where} is cut off or no JSON, and is left out")
        return None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else line[:40]
        raise ConfigError(
            f"{where} is of the schema {found!r:.60}, expected {SCHEMA!r}: write it with edgeprec bench -o jsonl"
        )
    if values.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"{where} is of schema version {values.get('schema_version')!r:.60}, expected {SCHEMA_VERSION}: "
            "measure again, or use the EdgePrec that wrote it"
        )
    return ResultFields(values, where)


def _add(found: dict[str, _Configuration], record: ResultFields, number: int) -> None:
    name, settings = configuration_of(record), configuration_settings(record)
    batch = record.integer("test", "sequences")
    reason = _why_not_measured(record)
    point = None if reason is not None else _measured(record, batch, number)
    configuration = found.setdefault(_key(settings), _Configuration(name, settings))
    if point is None:
        configuration.left_out.append(f"line {number}, batch {batch}: {reason}")
        return
    meter = meter_settings(record)
    sweep = configuration.sweeps.setdefault(_key(meter), Sweep(name=name, settings={**settings, **meter}))
    _put(sweep, point, is_broken_off=record.optional("is_complete") is False)


def _put(sweep: Sweep, point: Measured, *, is_broken_off: bool) -> None:
    """Take a point in; one that broke off does not stand in for one that did not."""
    old = sweep.points.get(point.batch)
    if is_broken_off and old is not None and point.batch not in sweep.broken_off:
        sweep.left_out.append(f"{point.origin}: it broke off, and {old.origin} did not")
        return
    sweep.points[point.batch] = point
    (sweep.broken_off.add if is_broken_off else sweep.broken_off.discard)(point.batch)


def _why_not_measured(record: ResultFields) -> str | None:
    if record.optional("energy", "is_total") is not True:
        return f"no measured total ({record.optional('energy_note') or 'only a part of the device was measured'})"
    return "no speed was measured" if record.optional("tokens_per_s") is None else None


def _measured(record: ResultFields, batch: int, number: int) -> Measured:
    try:
        return Measured(
            batch=batch,
            tokens_per_s=_whole_rate(record),
            joules_per_token=record.spread("energy", "joules_per_token", extra=_meter_doubt(record)),
            origin=f"line {number}: {record.text('test', 'name')}",
            idle_watts=record.optional_number("idle", "watts"),
            notes=tuple(_notes(record)),
        )
    except ConfigError as error:
        raise ConfigError(str(error) if record.where in str(error) else f"{record.where}: {error}") from error


def _notes(record: ResultFields) -> Iterator[str]:
    """Yield what to know of the numbers of a row."""
    source = record.text("energy", "source", default="")
    if source.startswith("simulated"):
        yield f"the energy is simulated ({source}), not measured"
    if source.startswith("replay"):
        yield "the energy is replayed from a recording, not measured in this run"
    if record.optional("is_complete") is False:
        yield f"broken off after {record.optional('repeats')} repeats"
    energy_note, idle_note = record.optional_text("energy_note"), record.optional_text("idle", "note")
    yield from [energy_note] if energy_note else []
    yield from [idle_note] if idle_note and record.optional("idle", "watts") is not None else []


def _key(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)


def _whole_rate(record: ResultFields) -> Value:
    """Return the tokens a second of the windows the joules come from, prefill inside; decoding's own is higher."""
    decoding, seconds = record.spread("tokens_per_s"), record.optional_number("energy", "seconds")
    if not seconds:
        return decoding
    return decoding.scaled(record.integer("energy", "tokens") / seconds / decoding.value)


def _meter_doubt(record: ResultFields) -> float:
    """Return the sensor's plus/minus by token."""
    return record.number("energy", "plus_minus_joules") / record.integer("energy", "tokens")
