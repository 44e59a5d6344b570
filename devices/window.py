"""One measured stretch of work: a context manager that takes phase marks and afterwards holds the reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Self

from edgeprec.devices.account import Account, Answer
from edgeprec.devices.curve import Span
from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.sensor import Sample

if TYPE_CHECKING:
    from edgeprec.devices.meter import Meter

__all__ = ["Window", "phase_spans"]


class Window:
    """The energy between entering and leaving a ``with`` block.

    ``mark`` starts a phase that lasts until the next mark or the end; a phase may come back thousands of times. The
    readings exist after the block, also when it was left by an exception. Time before the first mark belongs to no
    phase.
    """

    def __init__(self, name: str, meter: Meter, clock: Callable[[], int]) -> None:
        self.name = name
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.reading: EnergyReading | None = None
        self.note: str | None = "the window is still open"
        self.by_phase: dict[str, EnergyReading | None] = {}
        self.phase_notes: dict[str, str | None] = {}
        self.samples: tuple[Sample, ...] = ()
        self._meter = meter
        self._clock = clock
        self._marks: list[tuple[int, str]] = []
        self._account: Account | None = None

    def __enter__(self) -> Self:
        self._meter.open_window(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._meter.close_window(self)

    def mark(self, phase: str) -> None:
        """Start a phase now. Costs one look at the clock and one append."""
        self._marks.append((self._clock(), phase))

    def adopt(self, inner: Window, *, after: str) -> None:
        """Take over the phases of a closed window that lies inside this one; the phase ``after`` begins at its end."""
        self._marks += [*inner._marks, (inner.span().end_ns, after)]

    def power_trace(self) -> list[tuple[int, float | None]]:
        """Return (time in ns, power of the total in mW or None) for each sample of the closed window."""
        return [] if self._account is None else self._account.power_trace()

    def rail_traces(self) -> list[tuple[int, dict[str, float | None]]]:
        """Return (time in ns, power in mW or None by the rail's label) for each sample of the closed window."""
        return [] if self._account is None else self._account.rail_traces()

    @cached_property
    def by_rail(self) -> dict[str, Answer]:
        """The reading of each rail with its note, by the rail's id, once the window is closed."""
        return {} if self._account is None else self._account.by_rail()

    def phases(self, account: Account, span: Span) -> dict[str, EnergyReading | None]:
        """Return the reading of every phase marked so far within ``span``."""
        return {phase: _phase(account, spans)[0] for phase, spans in phase_spans(self._marks, span).items()}

    def phases_so_far(self) -> dict[str, EnergyReading | None]:
        """Return the phases of the window while it is open."""
        return self._meter.phases_so_far(self)

    def settle(self, account: Account, samples: Sequence[Sample]) -> None:
        """Take the readings of the closed window from its account. Called by the meter."""
        span = self.span()
        self._account = account
        self.samples = tuple(sample for sample in samples if span.start_ns <= sample.time_ns <= span.end_ns)
        self.reading, self.note = account.total()
        for phase, spans in phase_spans(self._marks, span).items():
            self.by_phase[phase], self.phase_notes[phase] = _phase(account, spans)

    def span(self) -> Span:
        """Return the start and the end of the closed window."""
        if self.start_ns is None or self.end_ns is None:
            msg = f"the window {self.name!r} is not closed"
            raise RuntimeError(msg)
        return Span(self.start_ns, self.end_ns)


def _phase(account: Account, spans: Sequence[Span]) -> Answer:
    if not spans:
        return Answer(None, "too short: the phase took no time")
    return account.phase(spans)


def phase_spans(marks: Sequence[tuple[int, str]], window: Span) -> dict[str, list[Span]]:
    """Return the stretches of each phase in order; a phase of no duration has an empty list."""
    spans: dict[str, list[Span]] = {}
    for (start_ns, phase), (end_ns, _) in pairwise([*marks, (window.end_ns, "")]):
        stretches = spans.setdefault(phase, [])
        start_ns, end_ns = max(start_ns, window.start_ns), min(end_ns, window.end_ns)
        if end_ns <= start_ns:
            continue
        if stretches and stretches[-1].end_ns == start_ns:
            stretches[-1] = Span(stretches[-1].start_ns, end_ns)
        else:
            stretches.append(Span(start_ns, end_ns))
    return spans
