"""One JSON object on standard output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["finite", "print_json"]


def print_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` on one line; a number JSON cannot hold is null. Letters are escaped where output is no UTF-8."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(json.dumps(finite(value), ensure_ascii=not is_unicode, allow_nan=False))


def finite(value: Any) -> Any:
    """Return ``value`` with None in place of numbers JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
