"""The vocabulary that a GGUF file's metadata lists: tokens, their kinds, scores, merges, and the special ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from edgeprec.errors import ConfigError
from edgeprec.export.gguf_file import GgufFile

__all__ = ["GgufVocab", "TokenKind"]

_PREFIX = "tokenizer.ggml."


class TokenKind(IntEnum):
    """The values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocab:
    """A view of the tokenizer keys of one file.

    Raises:
        ConfigError: a key is missing, of the wrong kind, or its length does not fit the others.
    """

    file: GgufFile

    def get(self, key: str, default: Any = None) -> Any:
        """Return ``tokenizer.ggml.<key>``."""
        return self.file.metadata.get(_PREFIX + key, default)

    def token_id(self, key: str) -> int | None:
        """Return the id that a key like ``bos_token_id`` names, or None."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def tokens(self) -> list[str]:
        """Return the text of every id."""
        return self._strings("tokens")

    def token(self, index: int) -> str:
        """Return the text of one id that the metadata names."""
        tokens = self.tokens()
        if index >= len(tokens):
            raise ConfigError(f"{self.origin} names the special token {index}, but has {len(tokens)} tokens")
        return tokens[index]

    def kinds(self) -> list[int]:
        """Return the kind of every id; a file without kinds has normal tokens only."""
        return self._column("token_type", default=TokenKind.NORMAL)

    def scores(self) -> list[float]:
        """Return the SentencePiece score of every id."""
        return self._column("scores", default=None)

    def merges(self) -> list[list[str]]:
        """Return the byte-pair merges, best first, as pairs."""
        pairs = [merge.split(" ") for merge in self._strings("merges")]
        bad = next((pair for pair in pairs if len(pair) != 2), None)
        if bad is not None:
            raise ConfigError(f"{self.origin}: merge {' '.join(bad)!r} has {len(bad)} parts, expected 2")
        return pairs

    def used(self) -> Iterator[tuple[int, str, int]]:
        """Yield (id, token, kind) of every token that is not padding."""
        for index, (token, kind) in enumerate(zip(self.tokens(), self.kinds(), strict=True)):
            if kind != TokenKind.UNUSED:
                yield index, token, kind

    def ids(self) -> dict[str, int]:
        """Return token -> id, padding left out."""
        ids: dict[str, int] = {}
        for index, token, _ in self.used():
            if token in ids:
                raise ConfigError(f"{self.origin}: token {token!r} has two ids, {ids[token]} and {index}")
            ids[token] = index
        return ids

    def added_tokens(self) -> list[dict[str, Any]]:
        """Return the entries of ``added_tokens`` in a tokenizer file: found in text before anything else is."""
        special: dict[int, bool] = {
            TokenKind.CONTROL: True,
            TokenKind.UNKNOWN: True,
            TokenKind.USER_DEFINED: False,
        }
        return [_added_token(index, token, special[kind]) for index, token, kind in self.used() if kind in special]

    @property
    def origin(self) -> str:
        """Return what messages call the vocabulary."""
        return f"the tokenizer in {self.file.path}"

    def _list(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{self.file.path} has no {_PREFIX}{key}: a GGUF file with its tokenizer is needed")
        return value

    def _strings(self, key: str) -> list[str]:
        values = self._list(key)
        if not isinstance(values[0], str):  # the entries of a GGUF array are of one type
            raise ConfigError(f"{self.file.path}: {_PREFIX}{key} holds {values[0]!r}, expected strings")
        return values

    def _column(self, key: str, *, default: Any) -> list[Any]:
        length = len(self.tokens())
        if default is not None and self.get(key) is None:
            return [default] * length
        values = self._list(key)
        if isinstance(values[0], str):
            raise ConfigError(f"{self.file.path}: {_PREFIX}{key} holds {values[0]!r}, expected numbers")
        if len(values) != length:
            raise ConfigError(f"{self.file.path}: {_PREFIX}{key} has {len(values)} entries, expected {length}")
        return values


def _added_token(index: int, token: str, is_special: bool) -> dict[str, Any]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }
