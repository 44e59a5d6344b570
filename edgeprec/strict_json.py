"""Read JSON that others may have damaged: no duplicate, unknown or missing keys, no wrong types, no NaN.

The caller names the error class, so that a bundle's file is a BundleError and a setting is a ConfigError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from edgeprec.errors import EdgePrecError

__all__ = ["Fields", "parse_json"]

Value = TypeVar("Value")
_LIMIT = 1e300  # NaN, infinities and integers no float can hold are all refused by it


def parse_json(data: bytes, *, where: str, error: type[EdgePrecError]) -> Any:
    """Return the value of UTF-8 JSON text; ``where`` names the file in errors."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise error(f"{where} has the key {twice!r} twice: it is damaged")
        return values

    def no_constant(name: str) -> NoReturn:
        raise error(f"{where} holds the number {name}, expected finite ones: it is damaged")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as cause:  # also text that is no UTF-8, integers of thousands of digits
        raise error(f"{where} is not valid JSON ({cause}): it is damaged") from cause


class Fields:
    """The keys of one JSON object, taken one by one; ``end`` then refuses those nobody took."""

    def __init__(self, values: Any, *, where: str, error: type[EdgePrecError]) -> None:
        self._where = where
        self._error = error
        if not isinstance(values, dict):
            raise error(f"{where} is {_describe(values)}, expected an object")
        self._values: dict[str, Any] = dict(values)

    def text(self, key: str) -> str:
        """Take a string."""
        value: str = self._take(key, str, "a string")
        return value

    def boolean(self, key: str) -> bool:
        """Take a boolean."""
        value: bool = self._take(key, bool, "true or false")
        return value

    def integer(self, key: str, *, minimum: int = 0) -> int:
        """Take an integer of at least ``minimum``."""
        value: int = self._take(key, int, f"an integer of at least {minimum}")
        if isinstance(value, bool) or value < minimum:
            self._refuse(key, value, f"an integer of at least {minimum}")
        return value

    def number(self, key: str) -> float:
        """Take a finite number."""
        value = self._take(key, (int, float), "a number")
        if isinstance(value, bool) or not abs(value) < _LIMIT:
            self._refuse(key, value, "a finite number")
        return float(value)

    def items(self, key: str) -> list[Any]:
        """Take a list."""
        value: list[Any] = self._take(key, list, "a list")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """Take an object whose keys are free."""
        value: dict[str, Any] = self._take(key, dict, "an object")
        return value

    def fields(self, key: str) -> Fields:
        """Take an object whose keys are known."""
        return Fields(self.mapping(key), where=f"{self._where}: {key}", error=self._error)

    def optional(self, key: str, take: Callable[[str], Value]) -> Value | None:
        """Take a key that may be absent or null: ``fields.optional("draft", fields.mapping)``."""
        if self._values.get(key) is None:
            self._values.pop(key, None)
            return None
        return take(key)

    def end(self) -> None:
        """Refuse the keys that were not taken."""
        if self._values:
            raise self._error(f"{self._where} has unknown keys {sorted(self._values)}: it is damaged")

    def _take(self, key: str, kind: type[Value] | tuple[type[Any], ...], expected: str) -> Any:
        if key not in self._values:
            raise self._error(f"{self._where} has no {key!r}, expected {expected}")
        value = self._values.pop(key)
        if not isinstance(value, kind):
            self._refuse(key, value, expected)
        return value

    def _refuse(self, key: str, value: Any, expected: str) -> NoReturn:
        raise self._error(f"{self._where}: {key!r} is {_describe(value)}, expected {expected}")


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return repr(value)[:60]
