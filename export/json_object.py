"""Read a JSON file that must hold an object, and typed values out of one; every complaint names file and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeprec.errors import ConfigError

__all__ = ["JsonObject", "read_json_object", "read_text_file"]


class JsonObject:
    """The keys of one JSON object. ``origin`` is what messages call it, usually the file's path."""

    __slots__ = ("origin", "values")

    def __init__(self, values: Mapping[str, Any], *, origin: str) -> None:
        self.values = values
        self.origin = origin

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``; null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
            ConfigError: the key is absent and has no default, or holds something else.
        """
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.origin}: {key} is {value!r}, expected a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number as float.

        Raises:
            ConfigError: as ``integer``.
        """
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.origin}: {key} is {value!r}, expected a number")
        return float(value)

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; an absent key is an empty one.

        Raises:
            ConfigError: the key holds something else.
        """
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f"{self.origin}: {key} is {value!r}, expected a list of strings")
        return tuple(value)

    def child(self, key: str) -> JsonObject | None:
        """Return the object under ``key``, or None where there is none.

        Raises:
            ConfigError: the key holds something that is not an object.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.origin}: {key} is {value!r}, expected an object")
        return JsonObject(value, origin=f"{self.origin}: {key}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{self.origin} has no key {key!r}, which a checkpoint needs")
        return value


def read_json_object(path: Path) -> JsonObject:
    """Return the object a JSON file holds.

    Raises:
        ConfigError: the file is missing, unreadable, not UTF-8, not JSON, or holds no object.
    """
    try:
        value = json.loads(read_text_file(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}), expected an object: fetch the checkpoint again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return JsonObject(value, origin=str(path))


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        ConfigError: the file is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
