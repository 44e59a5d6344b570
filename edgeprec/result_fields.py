"""One result of a benchmark, an object of JSON whose fields are checked as they are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.projection import Value

__all__ = ["ResultFields"]

_MOST = 1e15  # of any number, so that sums and products of them stay finite


@dataclass(frozen=True, slots=True)
class ResultFields:
    """The object of one line; ``where`` names the line."""

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

    def optional_text(self, *path: str) -> str | None:
        """Return a text, None where nothing stands."""
        return None if self.optional(*path) is None else self.text(*path)

    def integer(self, *path: str) -> int:
        """Return a whole number of 1 or more."""
        value = self.optional(*path)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise self._wrong(path, value, "a whole number of 1 or more")
        return value

    def number(self, *path: str) -> float:
        """Return a number of 0 or more."""
        value = self.optional(*path)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
            raise self._wrong(path, value, f"a number of 0 or more, up to {_MOST:g}")
        return float(value)

    def optional_number(self, *path: str) -> float | None:
        """Return a number of 0 or more, None where nothing stands."""
        return None if self.optional(*path) is None else self.number(*path)

    def spread(self, *path: str, extra: float = 0.0) -> Value:
        """Return a mean with its deviation; a single repeat has none that is known."""
        mean = self.number(*path, "mean")
        if mean == 0:
            raise self._wrong((*path, "mean"), mean, "more than 0")
        deviation = self.optional_number(*path, "stdev")
        return Value(mean, None if deviation is None else deviation + extra)

    def _wrong(self, path: tuple[str, ...], value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {'.'.join(path)} is {str(value)[:40]!r}, expected {expected}: it is damaged")
