"""Measures another program like one's own: same prompts, same windows of the same meter, rows of the same schema.

A ``Peer`` answers a list of prompts; how it does that is its own. ``measure`` warms it up, runs it for some seconds a
repeat, and gives the record that ``edgeprec bench -o jsonl`` would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from batch_prompts import SweepPrompts

from edgeprec.config import DrafterKind, DraftingConfig, GenerationConfig, Mode
from edgeprec.devices.meter import Meter
from edgeprec.devices.sysfs import Sysfs
from edgeprec.runtime.batch_totals import BatchTotals
from edgeprec.runtime.benchmark_case import Case, CaseKind, Job
from edgeprec.runtime.benchmark_energy import BETWEEN, repeat_energy
from edgeprec.runtime.benchmark_machine import read_state
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work
from edgeprec.runtime.energy import NoWindow

__all__ = ["Peer", "PeerBench", "PeerRun", "PeerWay", "measure"]

Mark = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class PeerWay:
    """What a peer computes: the mode it is comparable with, and how far a draft model drafts; 0 = nobody drafts."""

    mode: Mode
    draft_length: int = 0

    def config(self, new_tokens: int) -> GenerationConfig:
        """Return it as one's own configuration says it."""
        if not self.draft_length:
            return GenerationConfig(mode=self.mode, max_new_tokens=new_tokens)
        drafting = DraftingConfig(drafter=DrafterKind.MODEL, draft_length=self.draft_length)
        return GenerationConfig(mode=self.mode, max_new_tokens=new_tokens, drafting=drafting)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """Answers to a list of prompts. ``decode_s`` is for every token but each first one.

    ``rounds`` counts passes of the target over all sequences; ``drafted`` and ``accepted`` None = it does not tell.
    """

    replies: list[list[int]]
    prefill_s: float
    decode_s: float
    rounds: int
    drafted: int | None = None
    accepted: int | None = None


class Peer(Protocol):
    """Another program with a model in it."""

    @property
    def way(self) -> PeerWay:
        """Return what it computes."""
        ...

    @property
    def is_continuous(self) -> bool:
        """Whether it refills the places of answers that have ended by itself, given more prompts than places."""
        ...

    def run(self, prompts: Sequence[tuple[int, ...]], *, new_tokens: int, mark: Mark) -> PeerRun:
        """Answer greedily, each until the model ends it or ``new_tokens``; ``mark`` begins a phase of energy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBench:
    """How long peers are measured, and with what. ``meter_note`` says why there is no meter."""

    prompts: SweepPrompts
    new_tokens: int
    seconds: float
    meter: Meter | None
    meter_note: str | None
    has_time: Callable[[], bool]


def measure(
    peer: Peer, bench: PeerBench, about: Circumstances, *, sequences: int, notes: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Warm up, then yield the record after each repeat, with all repeats so far."""
    case = Case(
        kind=CaseKind.PROMPTS,
        config=peer.way.config(bench.new_tokens),
        new_tokens=bench.new_tokens,
        sequences=sequences,
        prompt_set="test",
        prompts=bench.prompts.of_set,
    )
    before, repeats = read_state(Sysfs()), []
    count = _prompts_at_once(peer, bench, sequences)
    for number in range(about.repeats):
        if repeats and not bench.has_time():
            return
        repeats.append(_repeat(peer, bench, sequences=sequences, count=count, number=number))
        record = make_record(about, case, repeats, before=before, after=read_state(Sysfs()))
        record["notes"] += list(notes)
        for run in record["runs"]:
            run["generations"] = []
        yield record


def _prompts_at_once(peer: Peer, bench: PeerBench, sequences: int) -> int:
    """Warm up; return how many prompts one call takes to keep a peer busy for a repeat.

    The longest prompts and replies come first: a cache of fixed length that had to grow later would be compiled anew.
    """
    count = max(len(bench.prompts.of_set), 4 * sequences)
    by_length = sorted((job.tokens for job in bench.prompts.jobs(count, repeat=0, new_tokens=1)), key=len)
    for _ in range(2):
        peer.run(by_length[-sequences:], new_tokens=bench.new_tokens, mark=lambda phase: None)
    if not peer.is_continuous:
        return sequences
    some = [job.tokens for job in bench.prompts.jobs(4 * sequences, repeat=0, new_tokens=1)]
    probe = peer.run(some, new_tokens=bench.new_tokens, mark=lambda phase: None)
    rate = sum(map(len, probe.replies)) / (probe.prefill_s + probe.decode_s)
    return max(int(rate * bench.seconds / bench.new_tokens), 4 * sequences)


def _repeat(peer: Peer, bench: PeerBench, *, sequences: int, count: int, number: int) -> Repeat:
    window: Any = NoWindow() if bench.meter is None else bench.meter.window("repeat")
    generated: list[Generated] = []
    totals = BatchTotals(sequences)
    with window:
        started = time.monotonic()
        while not generated or (time.monotonic() - started < bench.seconds and not peer.is_continuous):
            jobs = bench.prompts.jobs(len(generated) + count, repeat=number, new_tokens=bench.new_tokens)[-count:]
            run = peer.run([job.tokens for job in jobs], new_tokens=bench.new_tokens, mark=window.mark)
            window.mark(BETWEEN)
            generated += _generated(peer.way, jobs, run)
            _count(totals, peer.way, run)
    tokens = sum(one.new_tokens for one in generated)
    energy, note = repeat_energy(window, tokens=tokens, note=bench.meter_note)
    return Repeat(generated=tuple(generated), energy=energy, energy_note=note, batch=totals)


def _generated(way: PeerWay, jobs: Sequence[Job], run: PeerRun) -> Iterator[Generated]:
    """Yield one entry a job, each with its share of the time, so that rates come out in all."""
    count = len(jobs)
    works = [_work(way, run)] + [replace(_work(way, run), rounds=0, drafted=0, accepted=0)] * (count - 1)
    for job, tokens, work in zip(jobs, run.replies, works, strict=True):
        yield Generated(
            id=job.id,
            kind=job.kind,
            prompt_tokens=len(job.tokens),
            cached_tokens=0,
            new_tokens=len(tokens),
            prefill_s=run.prefill_s / count,
            decode_s=run.decode_s / count,
            finish_reason="length" if len(tokens) >= job.max_new_tokens else "stop",
            text="",
            tokens=tuple(tokens),
            work=work,
        )


def _work(way: PeerWay, run: PeerRun) -> Work:
    """Return what drafting did in the whole run; a peer does not tell what its layers did."""
    return Work(
        drafter="model" if way.draft_length else "none",
        rounds=run.rounds,
        drafted=run.drafted or 0,
        accepted=run.accepted or 0,
        int4_passes=0,
        all_passes=0,
        bits_read=0.0,
        weights_read=0.0,
    )


def _count(totals: BatchTotals, way: PeerWay, run: PeerRun) -> None:
    """Count turns, one of a sequence in a round: without drafts one a token, with them as many as were not accepted."""
    emitted = sum(max(len(tokens) - 1, 0) for tokens in run.replies)
    totals.decode_s += run.decode_s
    totals.emitted += emitted
    totals.turns += max(emitted - (run.accepted or 0), 0)
    totals.caps[way.draft_length] += run.rounds
