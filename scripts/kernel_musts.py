"""The figures that the kernels have to reach, as ratios in one run, and what a run makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel_timing import Timing

FP16_MUST, FP16_STRETCH = 0.95, 1.05
PEER_MUST, PEER_STRETCH = 1.0, 1.4
FP16_ROWS = 16
INT4_FIGURES = {  # rows, N, K: must, stretch, over cuBLAS FP16
    (1, 4096, 4096): (2.75, 3.2),
    (1, 28672, 4096): (2.75, 3.4),
    (1, 4096, 14336): (2.3, 3.0),
    (1, 6144, 4096): (2.4, 3.0),
    (16, 4096, 4096): (1.7, 2.2),
    (16, 28672, 4096): (2.0, 3.0),
    (16, 4096, 14336): (1.8, 2.6),
    (16, 6144, 4096): (1.7, 2.2),
}
Times = dict[tuple[str, int, int, int], Timing]  # kernel, rows, N, K


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One figure: the ratio of medians, its range over both spreads, and what was asked."""

    figure: str
    ratio: float
    low: float
    high: float
    must: float
    stretch: float

    def line(self) -> str:
        """Return the figure and by how much each mark is met or missed."""
        marks = [_mark(name, self.ratio, asked) for name, asked in (("must", self.must), ("stretch", self.stretch))]
        return f"{self.figure:34} {self.ratio:.2f}x ({self.low:.2f}..{self.high:.2f}), {', '.join(marks)}"


def judge(times: Times) -> list[Verdict]:
    """Return a verdict for every figure that ``times`` has both sides of."""
    found = []
    for (rows, n, k), (must, stretch) in INT4_FIGURES.items():
        figure = f"INT4, {rows} rows, {n}x{k}"
        found += _compare(times, figure, "edgeprec int4", "cublas fp16", (rows, n, k), must, stretch)
    for rows, n, k in _cases(times, "edgeprec fp16"):
        if rows <= FP16_ROWS:
            figure = f"FP16, {rows} rows, {n}x{k}"
            found += _compare(times, figure, "edgeprec fp16", "cublas fp16", (rows, n, k), FP16_MUST, FP16_STRETCH)
    for peer in ("tinygemm", "gemlite"):
        for rows, n, k in _cases(times, peer):
            figure = f"INT4 over {peer}, {rows} rows, {n}x{k}"
            found += _compare(times, figure, "edgeprec int4", peer, (rows, n, k), PEER_MUST, PEER_STRETCH)
    return found


def summarize(verdicts: list[Verdict]) -> list[str]:
    """Return all INT4 figures over cuBLAS, of the others the worst and every miss, and the count."""
    lines, groups = [], dict[str, list[Verdict]]()
    for verdict in verdicts:
        groups.setdefault(verdict.figure.split(",")[0], []).append(verdict)
    for name, group in groups.items():
        shown = group if name == "INT4" else [one for one in group if one.ratio < one.must]
        shown = shown or [min(group, key=lambda one: one.ratio)]
        lines += [one.line() for one in shown]
    met = sum(one.ratio >= one.must for one in verdicts)
    far = sum(one.ratio >= one.stretch for one in verdicts)
    return [*lines, f"{met} of {len(verdicts)} musts met, {far} stretches"]


def _compare(
    times: Times, figure: str, ours: str, theirs: str, case: tuple[int, int, int], must: float, stretch: float
) -> list[Verdict]:
    fast, slow = times.get((ours, *case)), times.get((theirs, *case))
    if fast is None or slow is None:
        return []
    return [
        Verdict(
            figure=figure,
            ratio=slow.median_us / fast.median_us,
            low=slow.low_us / fast.high_us,
            high=slow.high_us / fast.low_us,
            must=must,
            stretch=stretch,
        )
    ]


def _cases(times: Iterable[tuple[str, int, int, int]], kernel: str) -> list[tuple[int, int, int]]:
    return [(rows, n, k) for name, rows, n, k in times if name == kernel]


def _mark(name: str, ratio: float, asked: float) -> str:
    percent = abs(ratio / asked - 1.0) * 100.0
    return f"{name} {asked:g}x {'met' if ratio >= asked else 'MISSED'} by {percent:.0f} %"
