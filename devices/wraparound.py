"""A counter of limited range made to run on: pure arithmetic on raw values and their times."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Counted", "WrappingCounter"]

_NS_PER_S = 1e9
_IMPOSSIBLE_W = 10_000.0  # a zone that seems to draw more began anew instead of wrapping
_BUSY_W = 1_000.0  # a pause in which this power fills the range may hide a second wrap


class Counted(NamedTuple):
    """The counter in microjoules without wraps, and whether it began anew: then the interval before is unknown."""

    total_uj: int
    is_restart: bool


class WrappingCounter:
    """Adds the range whenever the raw value runs backwards.

    Where the range is unknown, the value would still run backwards, the power would be impossible, or the pause was so
    long that it may hide two wraps, the counter counts as begun anew.
    """

    def __init__(self, range_uj: int | None) -> None:
        self._range_uj = range_uj
        self._last: tuple[int, int] | None = None
        self._offset_uj = 0

    def update(self, raw_uj: int, time_ns: int) -> Counted:
        """Take the next raw value."""
        is_restart = False
        if self._last is not None:
            last_uj, last_ns = self._last
            seconds = (time_ns - last_ns) / _NS_PER_S
            wraps = self._wraps(raw_uj - last_uj, seconds)
            is_restart = wraps is None
            self._offset_uj = 0 if wraps is None else self._offset_uj + wraps
        self._last = (raw_uj, time_ns)
        return Counted(raw_uj + self._offset_uj, is_restart)

    def _wraps(self, difference_uj: int, seconds: float) -> int | None:
        """Return what the offset grows by, None for a new beginning."""
        if self._range_uj is not None and seconds * _BUSY_W * 1e6 >= self._range_uj:
            return None
        if difference_uj >= 0:
            return 0
        if self._range_uj is None or difference_uj + self._range_uj < 0:
            return None
        is_possible = difference_uj + self._range_uj <= seconds * _IMPOSSIBLE_W * 1e6
        return self._range_uj if is_possible else None
