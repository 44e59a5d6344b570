"""What ``check_cuda_provider.py`` measured, its tables in Markdown, and what of it is a failure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from provider_rows import RowBits

from edgeprec.config import GenerationConfig
from edgeprec.runtime.engine import EngineInfo
from edgeprec.runtime.reply import Reply

__all__ = ["Figures", "Run", "Sample", "Way", "agreement", "bits_table", "failures", "figures_table"]

BASE = "fp16"


class Way(NamedTuple):
    """One way to decode."""

    name: str
    config: GenerationConfig


class Sample(NamedTuple):
    """What is kept of a reply."""

    tokens: tuple[int, ...]
    tokens_per_s: float
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One engine's replies by the name of the way; ``note`` says why there are none."""

    device: str = ""
    has_bitwise_rows: bool = False
    fallbacks: tuple[str, ...] = ()
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    note: str | None = None

    @classmethod
    def of(cls, info: EngineInfo, replies: Mapping[str, Sequence[Reply]]) -> Run:
        """Keep what is compared."""
        return cls(
            device=info.device,
            has_bitwise_rows=info.has_bitwise_rows,
            fallbacks=info.fallbacks,
            samples={
                name: tuple(
                    Sample(reply.tokens, reply.stats.tokens_per_s or 0.0, reply.stats.acceptance_rate)
                    for reply in of_way
                )
                for name, of_way in replies.items()
            },
        )

    def tokens_per_s(self, way: str) -> float | None:
        """Return the median of a way's replies."""
        found = self.samples.get(way)
        return statistics.median(sample.tokens_per_s for sample in found) if found else None

    def same(self, way: str, other: Run, other_way: str) -> tuple[int, int, int] | None:
        """Return how many replies are those of another run, of how many, and the fewest tokens that agree."""
        pairs = list(zip(self.samples.get(way, ()), other.samples.get(other_way, ()), strict=False))
        if not pairs:
            return None
        agreed = [agreement(one.tokens, two.tokens) for one, two in pairs]
        return sum(one.tokens == two.tokens for one, two in pairs), len(pairs), min(agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All runs so far: ``cpu``, the provider under its name, and ``torch`` where it was asked for.

    ``row_bits`` is a text where the rows could not be compared: the reason.
    """

    provider: str
    ways: tuple[str, ...]
    runs: Mapping[str, Run] = field(default_factory=dict)
    row_bits: Sequence[RowBits] | str = ()

    @property
    def cpu(self) -> Run:
        """Return the CPU's run, an empty one before it was measured."""
        return self.runs.get("cpu", Run())

    def with_run(self, name: str, run: Run) -> Figures:
        """Return these figures with one run more; the CPU's comes first."""
        runs = {**self.runs, name: run}
        order = sorted(runs, key=lambda other: other != "cpu")
        return replace(self, runs={other: runs[other] for other in order})

    def to_json(self, *, least: int) -> dict[str, Any]:
        """Return plain values; comparisons are ``[same replies, replies, fewest tokens that agree]``."""
        bits = self.row_bits
        return {
            "problems": failures(self, least=least, needs_torch=False),
            "row_bits": bits if isinstance(bits, str) else [row._asdict() for row in bits],
            "provider": self.provider,
            "engines": {
                name: {
                    "device": run.device,
                    "has_bitwise_rows": run.has_bitwise_rows,
                    "fallbacks": list(run.fallbacks),
                    "note": run.note,
                }
                for name, run in self.runs.items()
            },
            "ways": [
                {
                    "way": way,
                    "engine": name,
                    "tokens_per_s": run.tokens_per_s(way),
                    "acceptance_rates": [sample.acceptance_rate for sample in run.samples.get(way, ())],
                    "same_as_cpu": run.same(way, self.cpu, way),
                    "same_as_own_fp16": run.same(way, run, BASE),
                }
                for way in self.ways
                for name, run in self.runs.items()
            ],
        }


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def figures_table(figures: Figures) -> str:
    """Return one line per way: speeds of all engines, and whose tokens are the same."""
    names = list(figures.runs)
    others = [name for name in names if name != "cpu"]
    head = ["decoding", *(f"{_title(name)}, tokens/s" for name in names)]
    head += [f"{_title(name)} = CPU" for name in others] + [f"{_title(name)} = its own fp16" for name in others]
    lines = ["", _row(head), "|---" * len(head) + "|"]
    for way in figures.ways:
        cells = [way, *(_number(figures.runs[name].tokens_per_s(way)) for name in names)]
        cells += [_same(figures.runs[name].same(way, figures.cpu, way)) for name in others]
        for name in others:
            run = figures.runs[name]
            cells.append(_same(run.same(way, run, BASE)) if way.startswith("exact") else "-")
        lines.append(_row(cells))
    for name, run in figures.runs.items():
        notes = run.fallbacks if run.note is None else (f"not run: {run.note}",)
        lines += [f"\n{_title(name)}: {note}" for note in notes]
    return "\n".join(lines)


def bits_table(bits: Sequence[RowBits] | str) -> str:
    """Return one line per way to run FP16 passes: tokens whose logits are the bits of single rows, by rows at once."""
    if isinstance(bits, str) or not bits:
        return f"\nrows not compared: {bits}" if bits else ""
    sizes = list(bits[0].same_tokens)
    head = ["rows an FP16 pass runs", *(f"{size} at once" for size in sizes), "largest difference", "single row, ms"]
    lines = ["", _row(head), "|---" * len(head) + "|"]
    for one in bits:
        cells = ["as asked" if one.fp16_rows == 1 else f"always {one.fp16_rows}"]
        cells += [f"{same} of {one.tokens}" for same in one.same_tokens.values()]
        lines.append(_row([*cells, f"{one.largest_difference:.2g}", f"{one.single_row_ms:.2f}"]))
    return "\n".join(lines)


def failures(figures: Figures, *, least: int, needs_torch: bool) -> list[str]:
    """Return what is wrong, in sentences."""
    cpu, found = figures.cpu, []
    for name, run in figures.runs.items():
        if run.note is not None and (name != "torch" or needs_torch):
            found.append(f"{_title(name)} did not run: {run.note}")
        agreed = run.same(BASE, cpu, BASE)
        if agreed is not None and agreed[0] < agreed[1] and agreed[2] < least:
            found.append(f"{_title(name)}'s fp16 is the CPU's for {agreed[2]} tokens only, expected {least} at least")
        for way in figures.ways:
            same = run.same(way, run, BASE)
            if way.startswith("exact") and run.has_bitwise_rows and same is not None and same[0] < same[1]:
                found.append(f"{_title(name)}: {way} differs from its own fp16 after {same[2]} tokens")
    return found


def _title(name: str) -> str:
    return {"cpu": "CPU", "torch": "torch engine"}.get(name, f"{name} provider")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _same(counts: tuple[int, int, int] | None) -> str:
    if counts is None:
        return "-"
    same, replies, fewest = counts
    return f"{same} of {replies}" + (f" (from {fewest})" if same < replies else "")
