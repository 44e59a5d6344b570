"""The log of samples: in order, without repetitions, and no longer than needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeprec.devices.sample_log import SampleLog
from edgeprec.devices.sensor import Sample


def sample(time_ns: int) -> Sample:
    """Return an empty sample of that time."""
    return Sample(time_ns=time_ns, values={})


def log_of(*times_ns: int) -> SampleLog:
    """Return a log that was given samples of these times."""
    log = SampleLog()
    for time_ns in times_ns:
        log.append(sample(time_ns))
    return log


def times(samples: list[Sample]) -> list[int]:
    """Return their times."""
    return [found.time_ns for found in samples]


def test_repeated_and_older_samples_are_dropped() -> None:
    """A sensor that repeats its last sample, or goes back in time, adds nothing."""
    log = log_of(10, 10, 5, 20)
    assert times(log.last(9)) == [10, 20]
    assert len(log) == 2


def test_between_includes_both_ends() -> None:
    """Samples at the very edges of a window belong to it."""
    assert times(log_of(10, 20, 30, 40).between(20, 30)) == [20, 30]
    assert log_of(10).between(11, 12) == []


def test_forgetting_keeps_the_newest() -> None:
    """Whatever is forgotten, the newest sample stays for the power of the moment."""
    log = log_of(10, 20, 30)
    log.forget_before(25)
    assert times(log.last(9)) == [30]
    log.forget_before(10_000)
    assert times(log.last(9)) == [30]
    empty = log_of()
    empty.forget_before(5)
    assert len(empty) == 0


@given(st.lists(st.integers(0, 1000)), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_forgetting_the_past_does_not_change_the_present(
    stamps: list[int], start: int, length: int, forgotten: int
) -> None:
    """What a window sees is the same whether or not samples before it were forgotten."""
    log, other = log_of(*stamps), log_of(*stamps)
    other.forget_before(min(start, forgotten))
    assert times(log.between(start, start + length)) == times(other.between(start, start + length))
    assert times(log.last(1)) == times(other.last(1))
