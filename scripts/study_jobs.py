"""Parts of a study in processes of their own, several at a time, until they are done or the time is over.

A part that fails does not stop the others; one that is stopped leaves nothing and is measured by the next run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Deadline", "Outcome", "run_jobs"]

_POLL_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of ``time.monotonic``, or None: never."""

    at_s: float | None = None

    @classmethod
    def after(cls, limit_s: float | None) -> Deadline:
        """Return the moment ``limit_s`` seconds from now."""
        return cls(None if limit_s is None else time.monotonic() + limit_s)

    @property
    def is_over(self) -> bool:
        """Return whether the moment has passed."""
        return self.at_s is not None and time.monotonic() >= self.at_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """Names of the parts that failed and of those that are not done because the time was over."""

    failed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    began_s: float


def run_jobs(
    commands: Mapping[str, Sequence[str]], *, jobs: int, deadline: Deadline, logs: Path, say: Say = print
) -> Outcome:
    """Run the commands, ``jobs`` at a time; each writes what it says to ``logs``/NAME.log.

    Whatever ends this function, no command runs on behind it.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting, running = list(commands), dict[str, _Running]()
    failed: list[str] = []
    done = 0
    try:
        while (waiting or running) and not deadline.is_over:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = _start(commands[name], logs / f"{name}.log")
            time.sleep(_POLL_S)
            for name in [name for name, job in running.items() if job.process.poll() is not None]:
                job = running.pop(name)
                done += 1
                say(f"[{done}/{len(commands)}] {name}: {_ending(job, logs / f'{name}.log')}")
                if job.process.returncode != 0:
                    failed.append(name)
        return Outcome(tuple(failed), (*running, *waiting))
    finally:
        for job in running.values():
            job.process.kill()
            job.process.wait()


def _start(command: Sequence[str], log: Path) -> _Running:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    return _Running(process, time.monotonic())


def _ending(job: _Running, log: Path) -> str:
    """Return how a job ended: its time, or its exit code and the last thing it said."""
    seconds = f"{time.monotonic() - job.began_s:.0f} s"
    if job.process.returncode == 0:
        return seconds
    said = log.read_text(errors="replace").strip().splitlines()
    return f"FAILED after {seconds}, exit code {job.process.returncode}: {said[-1] if said else 'it said nothing'}"
