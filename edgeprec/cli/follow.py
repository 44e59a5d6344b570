"""Follow a generation to its end: show each token, trace it, and let Ctrl-C end it cleanly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from edgeprec.cli.interrupt import calling_on_interrupt
from edgeprec.cli.power_points import Metered, power_points
from edgeprec.runtime.reply import Reply, RoundRecord, TokenEvent
from edgeprec.runtime.trace import TraceWriter

__all__ = ["Generating", "follow"]


class Generating(Metered, Protocol):
    """The part of a generation that is needed here."""

    @property
    def rounds(self) -> Sequence[RoundRecord]: ...

    @property
    def reply(self) -> Reply: ...

    def __iter__(self) -> Iterator[TokenEvent]: ...

    def cancel(self) -> None:
        """End it; what was emitted stays."""
        ...


def follow(
    generation: Generating, *, show: Callable[[TokenEvent], None] | None = None, trace: TraceWriter | None = None
) -> Reply:
    """Run ``generation`` to its end and return its reply; Ctrl-C makes that a cancelled one."""
    traced = 0
    with calling_on_interrupt(generation.cancel):
        for event in generation:
            if show is not None:
                show(event)
            if trace is not None:
                trace.token(event)
                traced += _trace_rounds(trace, generation.rounds[traced:])
    if trace is not None:
        _trace_rounds(trace, generation.rounds[traced:])
        for point in power_points(generation):
            trace.power(time_ns=point.time_ns, milliwatts=point.milliwatts, total_mw=point.total_mw)
        trace.end(generation.reply)
    return generation.reply


def _trace_rounds(trace: TraceWriter, rounds: Sequence[RoundRecord]) -> int:
    for record in rounds:
        trace.round(record)
    return len(rounds)
