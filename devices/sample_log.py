"""The samples a meter has taken, in order of time, forgetting what no window needs any more."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from edgeprec.devices.sensor import Sample

__all__ = ["SampleLog"]


class SampleLog:
    """Samples whose time moves on; a sample that repeats or precedes the last one is dropped."""

    __slots__ = ("_samples", "_times_ns")

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._times_ns: list[int] = []

    def __len__(self) -> int:
        return len(self._samples)

    def append(self, sample: Sample) -> None:
        """Add a sample unless it is no newer than the last one."""
        if not self._times_ns or sample.time_ns > self._times_ns[-1]:
            self._samples.append(sample)
            self._times_ns.append(sample.time_ns)

    def between(self, start_ns: int, end_ns: int) -> list[Sample]:
        """Return the samples from ``start_ns`` to ``end_ns``, both included."""
        return self._samples[bisect_left(self._times_ns, start_ns) : bisect_right(self._times_ns, end_ns)]

    def last(self, count: int) -> list[Sample]:
        """Return the newest ``count`` samples, oldest first."""
        return self._samples[-count:]

    def forget_before(self, time_ns: int) -> None:
        """Drop the samples older than a moment, keeping at least the newest one."""
        count = min(bisect_left(self._times_ns, time_ns), max(len(self._samples) - 1, 0))
        del self._samples[:count]
        del self._times_ns[:count]
