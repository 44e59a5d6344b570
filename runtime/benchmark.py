"""Runs benchmark cases on a session: a warm-up, then repeats, each inside a window of its meter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from edgeprec.devices.window import Window
from edgeprec.errors import ConfigError
from edgeprec.runtime.batch_benchmark import require_together, run_together, work_of
from edgeprec.runtime.benchmark_case import Case, CaseKind, Corpus, Job
from edgeprec.runtime.benchmark_energy import BETWEEN, repeat_energy
from edgeprec.runtime.benchmark_repeat import Generated, Repeat, Work, counted_tokens
from edgeprec.runtime.energy import NoWindow
from edgeprec.runtime.generation import Generation
from edgeprec.runtime.reply import LevelStats
from edgeprec.runtime.session import Session

__all__ = ["run_case", "session_runs"]


def session_runs(session: Session, case: Case) -> None:
    """Check that this session can run a case.

    Raises:
        ConfigError: it asks for more rows in a pass, or for more sequences at once, than the engine takes, or for a
            draft model that is not there.
    """
    session.check(case.config)
    info = session.info
    if case.prefill_rows is not None and case.prefill_rows > info.max_rows:
        raise ConfigError(
            f"-b asks for {case.prefill_rows} rows in a prefill pass, the engine {info.name} takes at most "
            f"{info.max_rows}"
        )
    if case.sequences > 1:
        require_together(session, case)


def run_case(
    session: Session, case: Case, corpus: Corpus, *, repeats: int, has_warm_up: bool = True
) -> Iterator[Repeat]:
    """Yield the repeats of a case as they are done. The warm-up and what fills the cache to its depth are not measured.

    Raises:
        ConfigError: the session cannot run it.
        EngineError: a pass failed.
    """
    session_runs(session, case)
    session.prefill_rows = case.prefill_rows
    try:
        for number in range(0 if has_warm_up else 1, repeats + 1):
            _fill_cache(session, case, corpus)
            repeat = _run(session, case, corpus.jobs(case, number) if number else corpus.warm_up(case))
            if number:
                yield repeat
    finally:
        session.prefill_rows = None


def _fill_cache(session: Session, case: Case, corpus: Corpus) -> None:
    context = corpus.context(case)
    if context and case.sequences == 1:
        session.generate(context, case.config, max_new_tokens=1, ignore_eos=True)


def _run(session: Session, case: Case, jobs: list[Job]) -> Repeat:
    window = _open_window(session)
    if case.sequences > 1:
        return run_together(session, case, jobs, window)
    generated: list[Generated] = []
    note = None
    with window:
        for job in jobs:
            one, note = _generate(session, case, job, window)
            generated.append(one)
    energy, note = repeat_energy(window, tokens=counted_tokens(case.kind, generated), note=note)
    return Repeat(generated=tuple(generated), energy=energy, energy_note=note)


def _open_window(session: Session) -> AbstractContextManager[object]:
    return NoWindow() if session.meter is None else session.meter.window("repeat")


def _generate(session: Session, case: Case, job: Job, window: object) -> tuple[Generated, str | None]:
    """Run one generation to its end and return its numbers and why it has no energy, if so."""
    is_synthetic = case.kind is not CaseKind.PROMPTS
    config = replace(case.config, max_new_tokens=job.max_new_tokens, ignore_eos=is_synthetic or case.config.ignore_eos)
    generation = session.stream(job.tokens, config)
    for _ in generation:
        pass
    reply = generation.reply
    if isinstance(window, Window) and isinstance(generation.window, Window):
        window.adopt(generation.window, after=BETWEEN)
    stats = reply.stats
    one = Generated(
        id=job.id,
        kind=job.kind,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=_cached(generation),
        new_tokens=stats.new_tokens,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        finish_reason=str(reply.finish_reason),
        text=reply.text,
        tokens=reply.tokens,
        work=_with_levels(work_of(generation.tally, stats.drafter), stats.three_level),
        fallbacks=stats.fallbacks,
    )
    return one, stats.energy_note


def _with_levels(work: Work, levels: LevelStats | None) -> Work:
    if levels is None:
        return work
    return replace(work, level_drafted=levels.model_drafted, level_accepted=levels.model_accepted)


def _cached(generation: Generation) -> int:
    """Return how many rows prefill left out; the last one always runs."""
    return min(generation.prompt.cached, len(generation.prompt.tokens) - 1)
