"""Reads the lines of ``edgeprec bench -o jsonl``: what a projection needs of them, by configuration.

Fields that are not needed are not looked at, so that a newer minor addition does not matter; another schema is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.projection import Measured, Value

__all__ = ["SCHEMA", "SCHEMA_VERSION", "Sweep", "read_sweeps"]

SCHEMA = "edgeprec.bench"
SCHEMA_VERSION = 1
_DECODING = ("tg", "prompts")


@dataclass(slots=True, kw_only=True)
class Sweep:
    """All batches measured of one configuration. ``left_out`` says which results cannot be used, and why."""

    name: str
    device: str
    power_mode: str | None
    rail: str | None
    scope: str | None
    idle_watts: float | None
    points: dict[int, Measured]
    left_out: list[str]

    @property
    def measured(self) -> list[Measured]:
        """Return the batches in order."""
        return [self.points[batch] for batch in sorted(self.points)]


def read_sweeps(text: str, *, where: str) -> tuple[list[Sweep], list[str]]:
    """Return the sweeps of a results file, and remarks on its lines. Of two results of one batch the later counts.

    Raises:
        ConfigError: a line is of another schema or lacks a field, or no line is a result of decoding.
    """
    sweeps: dict[str, Sweep] = {}
    remarks: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        record = _parse(line, f"{where}, line {number}", remarks)
        if record is not None and record.text("test", "kind") in _DECODING:
            _add(sweeps, record, number)
    if not sweeps:
        raise ConfigError(f"{where} holds no result of decoding: write one with edgeprec bench -o jsonl")
    return list(sweeps.values()), remarks


def _parse(line: str, where: str, remarks: list[str]) -> _Record | None:
    try:
        values = json.loads(line)
    except ValueError:
        remarks.append(f"{where} is cut off or no JSON, and is left out")
        return None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else line[:40]
        raise ConfigError(
            f"{where} is of the schema {found!r}, expected {SCHEMA!r}: write it with edgeprec bench -o jsonl"
        )
    if values.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"{where} is of schema version {values.get('schema_version')!r}, expected {SCHEMA_VERSION}: measure again, "
            "or use the EdgePrec that wrote it"
        )
    return _Record(values, where)


def _add(sweeps: dict[str, Sweep], record: _Record, number: int) -> None:
    name = " ".join(_name(record))
    if name not in sweeps:
        sweeps[name] = Sweep(
            name=name,
            device=record.text("device", "name", default="unknown device"),
            power_mode=record.optional("device", "power_mode"),
            rail=None,
            scope=None,
            idle_watts=None,
            points={},
            left_out=[],
        )
    sweep, batch = sweeps[name], record.integer("test", "sequences")
    energy = record.optional("energy")
    if energy is None or energy.get("is_total") is not True:
        reason = record.optional("energy_note") or "only a part of the device was measured"
        sweep.left_out.append(f"line {number}, batch {batch}: no measured total ({reason})")
        return
    sweep.rail, sweep.scope = record.optional("energy", "rail"), record.optional("energy", "scope")
    sweep.idle_watts = record.optional("idle", "watts")
    sweep.points[batch] = Measured(
        batch=batch,
        tokens_per_s=_whole_rate(record),
        joules_per_token=record.spread("energy", "joules_per_token", extra=_meter_doubt(record)),
        origin=f"line {number}: {record.text('test', 'name')}",
    )


def _name(record: _Record) -> Iterator[str]:
    """Yield what tells configurations apart; two results of one name differ in the batch only."""
    yield record.text("model", "name")
    yield record.text("engine")
    device, server = record.optional("device", "name"), record.optional("server", "url")
    yield f"on {device or 'unknown device'}"
    yield from [f"at {server}"] if server else []
    mode = record.optional("device", "power_mode")
    yield from [f"in {mode}"] if mode else []
    for key in ("mode", "drafter", "draft_length"):
        value = record.optional(key)
        yield from [f"{'K=' if key == 'draft_length' else ''}{value}"] if value is not None else []
    kind, new_tokens = record.optional("test", "prompt_set"), record.integer("test", "new_tokens")
    depth = record.optional("test", "depth_tokens")
    yield f"{kind + ' ' if kind else ''}tg{new_tokens}{f' @ d{depth}' if depth else ''}"


def _whole_rate(record: _Record) -> Value:
    """Return the tokens a second of the windows the joules come from, prefill inside; decoding's own is higher."""
    decoding = record.spread("tokens_per_s")
    if record.optional("energy", "seconds") is None:
        return decoding
    seconds = record.number("energy", "seconds")
    return decoding.scaled(record.number("energy", "tokens") / seconds / decoding.value) if seconds else decoding


def _meter_doubt(record: _Record) -> float:
    """Return the sensor's plus/minus by token."""
    joules, tokens = record.number("energy", "plus_minus_joules"), record.number("energy", "tokens")
    return joules / tokens if tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Record:
    """One line's object; every field that is taken is checked."""

    values: dict[str, Any]
    where: str

    def optional(self, *path: str) -> Any:
        """Return what stands at ``path``, None where nothing does."""
        found: Any = self.values
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(self, *path: str, default: str | None = None) -> str:
        """Return a text."""
        value = self.optional(*path)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(path, value, "a text")
        return value

    def integer(self, *path: str) -> int:
        """Return a whole number of 1 or more."""
        value = self.optional(*path)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(path, value, "a whole number of 1 or more")
        return value

    def number(self, *path: str) -> float:
        """Return a number of 0 or more."""
        value = self.optional(*path)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise self._wrong(path, value, "a number of 0 or more")
        return float(value)

    def spread(self, *path: str, extra: float = 0.0) -> Value:
        """Return a mean with its deviation; a single repeat has none that is known."""
        mean = self.number(*path, "mean")
        if mean == 0:
            raise self._wrong((*path, "mean"), mean, "more than 0")
        deviation = self.optional(*path, "stdev")
        return Value(mean, None if deviation is None else self.number(*path, "stdev") + extra)

    def _wrong(self, path: tuple[str, ...], value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {'.'.join(path)} is {str(value)[:40]!r}, expected {expected}: it is damaged")
