"""What tells the configurations of a results file apart: the settings of a row, and a name for each set of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeprec.result_fields import ResultFields

__all__ = ["Settings", "configuration_of", "configuration_settings", "distinct_names", "meter_settings"]

Settings = Mapping[str, Any]

_CONFIGURATION = (
    "device.name",
    "device.gpus",
    "device.power_mode",
    "model.name",
    "model.quantizer",
    "model.group_size",
    "model.draft",
    "model.draft_group_size",
    "server.url",
    "server.model",
    "engine",
    "engine_device",
    "threads",
    "mode",
    "drafter",
    "draft_length",
    "draft_rule",
    "objective",
    "three_level",
    "temperature",
    "ignores_eos",
    "test.kind",
    "test.prompt_set",
    "test.prompts",
    "test.new_tokens",
    "test.depth_tokens",
    "test.prefill_rows",
)
_METER = ("energy.source", "energy.rail", "energy.scope")


def configuration_settings(record: ResultFields) -> Settings:
    """Return what was run; two rows of the same settings differ in the batch only."""
    return {path: record.optional(*path.split(".")) for path in _CONFIGURATION}


def meter_settings(record: ResultFields) -> Settings:
    """Return what the joules of a row were measured with, and of what they are."""
    return {path: record.optional(*path.split(".")) for path in _METER}


def configuration_of(record: ResultFields) -> str:
    """Return a short name of what was run; rows of different settings may share it."""
    return " ".join(_words(record))


def _words(record: ResultFields) -> Iterator[str]:
    yield record.text("model", "name")
    yield record.text("engine")
    yield f"on {record.text('device', 'name', default='unknown device')}"
    server, mode = record.optional("server", "url"), record.optional("device", "power_mode")
    yield from [f"at {server}"] if server else []
    yield from [f"in {mode}"] if mode else []
    for key in ("mode", "drafter", "draft_length"):
        value = record.optional(key)
        yield from [f"{'K=' if key == 'draft_length' else ''}{value}"] if value is not None else []
    prompts, new_tokens = record.optional_text("test", "prompt_set"), record.integer("test", "new_tokens")
    depth = record.optional("test", "depth_tokens")
    yield f"{prompts + ' ' if prompts else ''}tg{new_tokens}{f' @ d{depth}' if depth else ''}"


def distinct_names(short: Sequence[str], settings: Sequence[Settings]) -> list[str]:
    """Return a name for each set of settings: the short one, and what differs from others of the same."""
    names = []
    for name, own in zip(short, settings, strict=True):
        alike = [other for other_name, other in zip(short, settings, strict=True) if other_name == name]
        differing = [path for path in own if len({_shown(other.get(path)) for other in alike}) > 1]
        told = ", ".join(f"{path.rpartition('.')[2]} {_shown(own[path])}" for path in differing)
        names.append(f"{name} [{told}]" if told else name)
    return names


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
