"""Power over time as straight pieces with holes between them, and the energy under any stretch of it.

A hole is time about which nothing is known; it holds no energy and counts as not covered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Curve", "Piece", "Span"]

_NS_PER_S = 1e9


class Span(NamedTuple):
    """A stretch of time."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Return how long it lasts."""
        return self.end_ns - self.start_ns


class Piece(NamedTuple):
    """A stretch of time in which power runs straight from one value to another."""

    start_ns: int
    end_ns: int
    start_mw: float
    end_mw: float

    def power_mw(self, time_ns: int) -> float:
        """Return the power at a moment inside the piece."""
        share = (time_ns - self.start_ns) / (self.end_ns - self.start_ns)
        return self.start_mw + (self.end_mw - self.start_mw) * share

    def energy_mj(self, until_ns: int) -> float:
        """Return the energy from the piece's start to a moment inside it."""
        return (self.start_mw + self.power_mw(until_ns)) / 2 * (until_ns - self.start_ns) / _NS_PER_S


class Curve:
    """Pieces in order of time, none of them overlapping or empty."""

    __slots__ = ("_energies_mj", "_lengths_ns", "_starts_ns", "high_mw", "low_mw", "pieces")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self._starts_ns = [piece.start_ns for piece in self.pieces]
        self._energies_mj = list(accumulate((piece.energy_mj(piece.end_ns) for piece in self.pieces), initial=0.0))
        self._lengths_ns = list(accumulate((piece.end_ns - piece.start_ns for piece in self.pieces), initial=0))
        values = [mw for piece in self.pieces for mw in (piece.start_mw, piece.end_mw)]
        self.low_mw = min(values, default=0.0)
        self.high_mw = max(values, default=0.0)

    def energy_mj(self, span: Span) -> float:
        """Return the energy of the covered part of a span."""
        return self._energy_until(span.end_ns) - self._energy_until(span.start_ns)

    def covered_ns(self, span: Span) -> int:
        """Return how much of a span the pieces cover."""
        return self._covered_until(span.end_ns) - self._covered_until(span.start_ns)

    def power_mw(self, time_ns: int) -> float | None:
        """Return the power at a moment, None in a hole and outside."""
        index = bisect_right(self._starts_ns, time_ns) - 1
        if index < 0 or time_ns > self.pieces[index].end_ns:
            return None
        return self.pieces[index].power_mw(time_ns)

    def _energy_until(self, time_ns: int) -> float:
        index = bisect_right(self._starts_ns, time_ns) - 1
        if index < 0:
            return 0.0
        piece = self.pieces[index]
        return self._energies_mj[index] + piece.energy_mj(min(time_ns, piece.end_ns))

    def _covered_until(self, time_ns: int) -> int:
        index = bisect_right(self._starts_ns, time_ns) - 1
        if index < 0:
            return 0
        piece = self.pieces[index]
        return self._lengths_ns[index] + min(time_ns, piece.end_ns) - piece.start_ns
