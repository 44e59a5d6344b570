"""Sequences a draft learns from, and which of their positions count. Plain arrays, saved as one safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from edgeprec.errors import ConfigError
from edgeprec.export.disk import disk_error, write_file

__all__ = ["Samples"]

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Samples:
    """``tokens`` [R, T]; row r is learned at positions ``first[r] <= t < last[r]``, each predicting token t + 1."""

    tokens: Ids
    first: Ids
    last: Ids

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def learned_tokens(self) -> int:
        """Return how many positions count."""
        return int(np.maximum(self.last - self.first, 0).sum())

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return [R, T], True where a position counts."""
        places = np.arange(self.tokens.shape[1])
        return (places >= self.first[:, None]) & (places < self.last[:, None])

    def rows(self, index: slice | npt.NDArray[np.int64]) -> Samples:
        """Return some rows."""
        return Samples(self.tokens[index], self.first[index], self.last[index])

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        """Return all rows of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    @classmethod
    def of_replies(cls, tokens: Ids, prompt_tokens: Ids, end_ids: frozenset[int]) -> Samples:
        """Learn from the end of each prompt to the first end token behind it, the token itself included."""
        places = np.arange(tokens.shape[1])
        ends = np.isin(tokens, list(end_ids)) & (places >= prompt_tokens[:, None])
        last = np.where(ends.any(1), ends.argmax(1), tokens.shape[1] - 1)
        return cls(tokens, np.maximum(prompt_tokens - 1, 0).astype(np.int32), last.astype(np.int32))

    @classmethod
    def of_text(cls, ids: npt.NDArray[np.int32], length: int) -> Samples:
        """Cut a text into rows of ``length`` and learn every position; a shorter rest is left out."""
        count = len(ids) // length
        tokens = ids[: count * length].reshape(count, length)
        return cls(tokens, np.zeros(count, np.int32), np.full(count, length - 1, np.int32))

    def save(self, path: Path) -> None:
        """Write the file at once: it is whole or not there.

        Raises:
            ConfigError, EdgePrecError: the folder cannot be written, or the disk is full.
        """
        data = save({"tokens": self.tokens, "first": self.first, "last": self.last})
        try:
            write_file(path, data, scratch=path.with_suffix(".part"))
        except OSError as error:
            raise disk_error(error, path.parent, needed_bytes=len(data)) from error

    @classmethod
    def load(cls, path: Path) -> Samples:
        """Read what ``save`` wrote.

        Raises:
            ConfigError: the file is damaged.
        """
        try:
            arrays = load_file(path)
            return cls(arrays["tokens"], arrays["first"], arrays["last"])
        except (SafetensorError, KeyError, OSError) as error:
            raise ConfigError(f"{path} is damaged ({error}): delete it and repeat the command") from error
