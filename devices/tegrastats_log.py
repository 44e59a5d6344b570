"""A log of tegrastats as samples. Its lines carry no time, or only whole seconds, so the time is worked out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from edgeprec.devices.rail_plans import label_total
from edgeprec.devices.sensor import Rail, Sample, Total
from edgeprec.devices.tegrastats import TegrastatsLine, parse_line
from edgeprec.devices.trace_file import TraceHeader
from edgeprec.errors import DeviceError

__all__ = ["Plan", "read_tegrastats"]

Plan = Callable[[Sequence[str]], Total | None]  # rail labels, which are the ids here, -> the total they make up

_DEFAULT_INTERVAL_MS = 1000.0
_NS_PER_S = 1_000_000_000


def read_tegrastats(lines: Iterable[str], *, plan: Plan = label_total) -> tuple[TraceHeader, list[Sample]]:
    """Return the rails of a log and one sample for each of its lines.

    The interval is worked out from the dates where the log has them (``tegrastats --readall`` or a logger's prefix),
    otherwise it is tegrastats' default of one second. A rail that a line lacks is None in that sample.

    Raises:
        DeviceError: no line has a power rail.
    """
    parsed = [found for found in map(parse_line, lines) if found.rails]
    if not parsed:
        raise DeviceError("no line has a power rail, expected a tegrastats log or a trace recorded by EdgePrec")
    labels = list(dict.fromkeys(label for line in parsed for label in line.rails))
    total = plan(labels)
    interval_ms = _interval_ms(parsed)
    header = TraceHeader(
        source="tegrastats",
        period_ms=interval_ms,
        lag_ms=None,
        rails=tuple(Rail(id=label, label=label, parent=_parent(label, total)) for label in labels),
        total=total,
        total_note=None
        if total is not None
        else f"no total known for the rails {', '.join(labels)} of a tegrastats log",
    )
    times_ns = _times_ns(parsed, round(interval_ms * 1e6))
    return header, [_sample(line, time_ns, labels) for line, time_ns in zip(parsed, times_ns, strict=True)]


def _parent(label: str, total: Total | None) -> str | None:
    if total is None or label in total.rail_ids or len(total.rail_ids) != 1:
        return None
    return total.rail_ids[0]


def _sample(line: TegrastatsLine, time_ns: int, labels: Sequence[str]) -> Sample:
    missing = {label: "not in this line of the log" for label in labels if label not in line.rails}
    values = {label: line.rails[label].now_mw if label in line.rails else None for label in labels}
    return Sample(time_ns=time_ns, values=values, reasons=missing)


def _seconds(line: TegrastatsLine) -> int | None:
    if line.date is None or line.time is None:
        return None
    try:
        return round(datetime.strptime(f"{line.date} {line.time}", "%m-%d-%Y %H:%M:%S").timestamp())
    except ValueError:
        return None


def _interval_ms(lines: Sequence[TegrastatsLine]) -> float:
    """Return the spacing of the lines: one second shared by the lines dated in it, or the median step between dates."""
    seconds = [second for second in map(_seconds, lines) if second is not None]
    distinct = sorted(set(seconds))
    if len(distinct) < 2:
        return _DEFAULT_INTERVAL_MS
    whole = [count for second, count in Counter(seconds).items() if second not in (distinct[0], distinct[-1])]
    per_second = median(whole) if whole else 1
    if per_second > 1:
        return 1000.0 / per_second
    return 1000.0 * median(later - earlier for earlier, later in pairwise(distinct))


def _times_ns(lines: Sequence[TegrastatsLine], interval_ns: int) -> list[int]:
    """Return evenly spaced times from zero, set right where the dates jump: a pause in the log stays a pause."""
    times: list[int] = []
    origin_s = next((second for second in map(_seconds, lines) if second is not None), 0)
    tolerance_ns = max(2 * interval_ns, 3 * _NS_PER_S // 2)
    for line in lines:
        time_ns = times[-1] + interval_ns if times else 0
        second = _seconds(line)
        if second is not None and times:
            dated_ns = (second - origin_s) * _NS_PER_S
            if dated_ns - time_ns > tolerance_ns:
                time_ns = dated_ns
        times.append(time_ns)
    return times
