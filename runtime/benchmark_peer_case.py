"""Runs benchmark cases on another server, with the meter of the session around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgeprec.devices.meter import Meter
from edgeprec.errors import ConfigError
from edgeprec.runtime.benchmark_case import Case, CaseKind, Corpus, Job
from edgeprec.runtime.benchmark_energy import BETWEEN, repeat_energy
from edgeprec.runtime.benchmark_peer import Peer
from edgeprec.runtime.benchmark_repeat import Repeat, counted_tokens
from edgeprec.runtime.energy import NoWindow

__all__ = ["peer_runs", "run_peer_case"]


def peer_runs(case: Case) -> None:
    """Check that a case can be asked of a server.

    Raises:
        ConfigError: it needs a cache of some depth, which a client cannot fill, or several sequences at once.
    """
    if case.depth_tokens:
        raise ConfigError("-d needs the cache of an engine of our own, --against has a server: leave one of them out")
    if case.sequences > 1:
        raise ConfigError(
            f"-npl asks for {case.sequences} sequences at once, --against sends one at a time: use -npl 1"
        )


def run_peer_case(
    peer: Peer,
    case: Case,
    corpus: Corpus,
    *,
    repeats: int,
    has_warm_up: bool = True,
    meter: Meter | None = None,
    meter_note: str | None = None,
) -> Iterator[Repeat]:
    """Yield the repeats of a case as they are done; see ``run_case`` and ``Peer.complete``.

    The joules of a server on another machine are not measured, whatever ``meter`` reads here.
    """
    peer_runs(case)
    peer.check(case.config)
    if not peer.is_local:
        meter, meter_note = None, peer.energy_note
    config = replace(case.config, ignore_eos=case.kind is not CaseKind.PROMPTS or case.config.ignore_eos)
    case = replace(case, config=config)
    if has_warm_up:
        _run(peer, case, corpus.warm_up(case), None, None)
    for number in range(1, repeats + 1):
        yield _run(peer, case, corpus.jobs(case, number), meter, meter_note)


def _run(peer: Peer, case: Case, jobs: list[Job], meter: Meter | None, note: str | None) -> Repeat:
    generated = []
    with NoWindow() if meter is None else meter.window("repeat") as window:
        for job in jobs:
            generated.append(peer.complete(job, case.config, mark=window.mark))
            window.mark(BETWEEN)
    energy, note = repeat_energy(window, tokens=counted_tokens(case.kind, generated), note=note)
    return Repeat(generated=tuple(generated), energy=energy, energy_note=note)
