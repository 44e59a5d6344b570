"""Prompt lookup: what followed the last n tokens when they last occurred?

The index maps every n-gram to the places right after it. Appending and taking back a token cost one dictionary access
per n; a proposal costs no more, however long the text is.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeprec.errors import ConfigError

__all__ = ["NgramIndex"]


class NgramIndex:
    """An append-only token list with rollback, and the continuations of its n-grams.

    Longer matches win over shorter ones, later ones over earlier ones.
    """

    def __init__(self, tokens: Iterable[int] = (), *, max_n: int = 4, min_n: int = 2) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"n-gram lookup: min_n is {min_n} and max_n {max_n}, expected 1 <= min_n <= max_n")
        self._sizes = range(max_n, min_n - 1, -1)
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Add one token at the end."""
        self._tokens.append(token)
        for gram in self._suffixes():
            self._places.setdefault(gram, []).append(len(self._tokens))

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self.append(token)

    def truncate(self, length: int) -> None:
        """Take back every token from index ``length`` on."""
        if not 0 <= length <= len(self._tokens):
            raise ConfigError(f"n-gram lookup: length is {length}, expected 0 to {len(self._tokens)}")
        while len(self._tokens) > length:
            for gram in self._suffixes():
                places = self._places[gram]
                places.pop()
                if not places:
                    del self._places[gram]
            self._tokens.pop()

    def propose(self, count: int) -> list[int]:
        """Return up to ``count`` tokens that may follow; none when the last ``min_n`` tokens are new.

        A match that reaches the end of the text repeats itself: it is a loop.
        """
        start = self._match()
        if start is None:
            return []
        period = len(self._tokens) - start
        return [self._tokens[start + offset % period] for offset in range(count)]

    def _match(self) -> int | None:
        for gram in self._suffixes():
            places = self._places[gram]
            if len(places) > 1:
                return places[-2]
        return None

    def _suffixes(self) -> list[tuple[int, ...]]:
        tokens = self._tokens
        return [tuple(tokens[-n:]) for n in self._sizes if n <= len(tokens)]
