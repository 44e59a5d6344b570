"""What a result or a reply must have to be drawn: one that lacks it is named, not a reason to break off half-way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.result_fields import ResultFields

__all__ = ["check_reply", "check_result"]

_LEAST = 1e-12  # of what is drawn on a logarithmic axis


def check_result(record: Mapping[str, Any], where: str) -> None:
    """Check the fields of a result of the batch benchmarks.

    Raises:
        ConfigError: one is missing, or is not what it should be.
    """
    fields = ResultFields(dict(record), where)
    fields.text("engine")
    fields.integer("test", "sequences")
    for name in ("mode", "drafter"):
        fields.optional_text(name)
    _check_texts(fields, "device", "gpus")
    _check_spread(fields, "tokens_per_s")
    if fields.optional("energy") is None:
        return
    _check_spread(fields, "energy", "joules_per_token")
    fields.number("energy", "joules")
    fields.integer("energy", "tokens")
    _check_numbers(fields, "energy", "by_phase")


def check_reply(reply: Mapping[str, Any], where: str) -> None:
    """Check the fields of a reply of ``bench_decode.py``.

    Raises:
        ConfigError: one is missing, or is not what it should be.
    """
    fields = ResultFields(dict(reply), where)
    fields.text("way")
    fields.optional_number("joules")
    if fields.optional("joules") is not None:
        fields.integer("tokens")
        _check_numbers(fields, "joules_by_phase")


def _check_spread(fields: ResultFields, *path: str) -> None:
    """Check a mean with its deviation, which may not have been measured."""
    if fields.optional(*path) is None:
        return
    if 0.0 < fields.number(*path, "mean") < _LEAST:
        raise _wrong(fields, path, f"has a mean below {_LEAST:g}")
    fields.optional_number(*path, "stdev")


def _check_numbers(fields: ResultFields, *path: str) -> None:
    found = fields.optional(*path)
    if not isinstance(found, dict):
        raise _wrong(fields, path, "is no object of numbers")
    for name in found:
        fields.optional_number(*path, name)


def _check_texts(fields: ResultFields, *path: str) -> None:
    found = fields.optional(*path)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _wrong(fields, path, "is no list of texts")


def _wrong(fields: ResultFields, path: tuple[str, ...], what: str) -> ConfigError:
    return ConfigError(f"{fields.where}: {'.'.join(path)} {what}: it is damaged, delete the line")
