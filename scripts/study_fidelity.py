"""Make docs/fidelity.md: how unverified INT4 decoding falls apart, why, and what verification makes of it.

    python scripts/study_fidelity.py BUNDLE [--work DIR] [--jobs 1] [--threads 2] [--limit-s S]
                                     [--prompts-per-kind 2] [--tokens 48] [-o docs]

Most is measured on rotated copies of BUNDLE's target, one per quantizer, which are made first; then FP16 answers the
prompts, and then come the parts, each in a process of its own, ``--jobs`` of them at a time:

    quantizer-<q>               forced fidelity with all layers, and all and the head, in INT4
    collapse-<q>-<order>-<n>    decoding with n layers in INT4, the least or the most sensitive first, and nothing
                                verified: flips, match and common prefix, with and without FP16's cache
    layers, modes, drafts       what edgeprec eval measures, on the copy of the best quantizer
    bundle-...                  forced fidelity, modes and drafts of BUNDLE as it is, with its draft model

Copies, texts and parts lie in the work folder and are made once: run the same command again to go on, delete a part's
file to repeat it. After ``--limit-s`` seconds the parts at work are stopped and the exit code is 1, as when one failed.
The page is written when every part is there. Needs no network; the extra ``export``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import study_page
from study_jobs import Deadline, Outcome, run_jobs
from study_parts import Study
from study_texts import write_json

from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export.progress import ProgressEvent
from edgeprec.export.quantizer import METHODS

_LINE_EVERY_S = 5.0


class _TimeIsOver(Exception):
    """The limit passed while a copy was made; what is made of it stays."""


def main() -> int:
    """Measure what is missing, then write the page; return the exit code."""
    arguments = _arguments()
    study = Study(
        bundle=arguments.bundle,
        work=arguments.work,
        threads=arguments.threads,
        prompts_per_kind=arguments.prompts_per_kind,
        tokens=arguments.tokens,
    )
    try:
        _require_same_study(study)
        if arguments.only is not None:
            study.measure(arguments.only)
            return 0
        problem = None if arguments.page else _measure(study, arguments)
    except EdgePrecError as error:
        problem = str(error)
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    size = f"--prompts-per-kind {study.prompts_per_kind} --tokens {study.tokens}"
    study_page.write(study.results(), arguments.output, size=size)
    print(f"wrote {arguments.output / 'fidelity.md'}")
    return 0


def _measure(study: Study, arguments: argparse.Namespace) -> str | None:
    """Do everything that is not done; return in a sentence why some of it is missing, or None."""
    deadline = Deadline.after(arguments.limit_s)
    try:
        for method in METHODS:
            study.make_copy(method, _lines(f"copy by {method}", deadline))
    except _TimeIsOver:
        return f"--limit-s {arguments.limit_s:g} passed while the copies were made: run the command again to go on"
    texts = [f"texts-{name}" for name in study.text_names if not study.text_file(name).exists()]
    written = _run(study, texts, arguments, deadline)
    if written.failed or written.left:
        return _missing(written, arguments)
    parts = [name for name in study.parts() if not study.part_file(name).exists()]
    return _missing(_run(study, parts, arguments, deadline), arguments)


def _run(study: Study, names: Sequence[str], arguments: argparse.Namespace, deadline: Deadline) -> Outcome:
    def command(name: str) -> list[str]:
        size = ("--prompts-per-kind", study.prompts_per_kind, "--tokens", study.tokens, "--threads", study.threads)
        values = (sys.executable, __file__, study.bundle, "--work", study.work, "--only", name, *size)
        return [str(value) for value in values]

    return run_jobs(
        {name: command(name) for name in names},
        jobs=arguments.jobs,
        deadline=deadline,
        logs=study.work / "logs",
        say=lambda line: print(line, flush=True),
    )


def _missing(outcome: Outcome, arguments: argparse.Namespace) -> str | None:
    said = []
    if outcome.failed:
        said.append(f"failed: {', '.join(outcome.failed)}, see {arguments.work / 'logs'}")
    if outcome.left:
        said.append(f"left after --limit-s {arguments.limit_s:g}: {', '.join(outcome.left)}")
    return "; ".join(said) + "; run the command again to go on" if said else None


def _require_same_study(study: Study) -> None:
    """Refuse a work folder of another bundle or another size: its parts would be mixed with these.

    Raises:
        ConfigError: names what differs.
    """
    file, facts = study.work / "study.json", study.facts()
    if not file.exists():
        write_json(file, facts)
        return
    known = json.loads(file.read_text())
    for name, value in facts.items():
        if known.get(name) != value:
            raise ConfigError(
                f"{study.work} holds a study with {name} {known.get(name)}, expected {value}: give another --work"
            )


def _lines(what: str, deadline: Deadline) -> Callable[[ProgressEvent], None]:
    """Return a function that prints a line for each stage and every few seconds, and stops the work at the deadline."""
    last_stage, last_s = "", 0.0

    def show(event: ProgressEvent) -> None:
        nonlocal last_stage, last_s
        if deadline.is_over:
            raise _TimeIsOver
        now_s = time.monotonic()
        if event.stage != last_stage or now_s - last_s >= _LINE_EVERY_S:
            last_stage, last_s = event.stage, now_s
            print(f"{what}: {event.stage} {event.done}/{event.total} {event.detail}".rstrip(), flush=True)

    return show


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, default=Path("fidelity-study"), help="where copies and parts lie")
    parser.add_argument("--jobs", type=int, default=1, help="parts that are measured at a time")
    parser.add_argument("--threads", type=int, default=2, help="threads of each part")
    parser.add_argument("--limit-s", type=float, help="stop after so many seconds; the next run goes on")
    parser.add_argument("--only", help="measure this part, or texts-..., in this process and write no page")
    parser.add_argument("--page", action="store_true", help="write the page from the parts there are, measure nothing")
    parser.add_argument("--prompts-per-kind", type=int, default=2, help="modes take all prompts there are")
    parser.add_argument("--tokens", type=int, default=48, help="length of a reply at most")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
