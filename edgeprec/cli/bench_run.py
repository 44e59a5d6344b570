"""Runs the cases of ``bench``, one after the other, and hands every result on as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeprec.cli.bench_facts import graph_facts, machine_files, why_no_total
from edgeprec.errors import ConfigError, DeviceError
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.runtime.benchmark import run_case
from edgeprec.runtime.benchmark_case import Case, Corpus
from edgeprec.runtime.benchmark_machine import read_state
from edgeprec.runtime.benchmark_peer import Peer, open_peer
from edgeprec.runtime.benchmark_peer_case import run_peer_case
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Repeat
from edgeprec.runtime.session import Session

__all__ = ["Bench", "connect", "require_energy"]

Record = dict[str, Any]


def connect(values: Mapping[str, Any]) -> Peer | None:
    """Return the server of ``--against``, None without one.

    Raises:
        ConfigError: its URL, model or key file cannot be used.
        EngineError: it cannot be reached.
        EdgePrecError: it does not answer as such a server does.
    """
    if values["against"] is None:
        return None
    key = None if values["against_key_file"] is None else _read_key(values["against_key_file"])
    return open_peer(values["against"], model=values["against_model"], key=key, timeout_s=values["against_timeout"])


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


class Bench:
    """Runs cases on a session and on a server. ``emit`` takes each record, ``show`` the progress."""

    def __init__(
        self, session: Session, about: Circumstances, *, emit: Callable[[Record], None], show: Progress, total: int
    ) -> None:
        self.records: list[Record] = []
        self._session = session
        self._about = about
        self._corpus = Corpus(session.tokenizer.encode, session.tokenizer.decode)
        self._files = machine_files(session)
        self._emit = emit
        self._show = show
        self._total = total * about.repeats
        self._done = 0

    @property
    def corpus(self) -> Corpus:
        """Return where synthetic prompts come from."""
        return self._corpus

    def run_own(self, cases: Sequence[Case]) -> None:
        """Run cases on the session; see ``run_case`` for what it raises."""
        for case in cases:
            about = self._about
            runs = run_case(self._session, case, self._corpus, repeats=about.repeats, has_warm_up=about.has_warm_up)
            self._follow(about, case, runs, f"{case.name} {case.config.mode}")

    def run_peer(self, peer: Peer, cases: Sequence[Case]) -> None:
        """Run cases on a server; see ``run_peer_case`` for what it raises."""
        about = replace(
            self._about, engine=peer.engine, engine_device=None, threads=None, versions={}, server=peer.to_json()
        )
        for case in cases:
            runs = run_peer_case(
                peer,
                case,
                self._corpus,
                repeats=about.repeats,
                has_warm_up=about.has_warm_up,
                meter=self._session.meter,
                meter_note=why_no_total(self._session),
            )
            self._follow(about, case, runs, f"{case.name} {peer.engine}")

    def _follow(self, about: Circumstances, case: Case, runs: Iterator[Repeat], detail: str) -> None:
        """Collect the repeats of a case; where it breaks off, what it had until then becomes a record too."""
        before = read_state(self._files)
        repeats: list[Repeat] = []
        self._show(ProgressEvent("bench", self._done, self._total, detail))
        try:
            for repeat in runs:
                repeats.append(repeat)
                self._done += 1
                self._show(ProgressEvent("bench", self._done, self._total, detail))
        finally:
            if repeats:
                record = make_record(about, case, repeats, before=before, after=read_state(self._files))
                record["graphs"] = None if about.server is not None else graph_facts(self._session)
                self.records.append(record)
                self._emit(record)


def require_energy(records: Sequence[Mapping[str, Any]]) -> None:
    """Check that every record has the joules of a total for every repeat.

    Raises:
        DeviceError: one has not.
    """
    without = [record for record in records if not _has_total(record)]
    if without:
        first = without[0]
        reason = first["energy_note"] or "only a part of the device is measured"
        raise DeviceError(
            f"--require-energy: {len(without)} of {len(records)} tests have no measured total, first "
            f"{first['test']['name']}: {reason}"
        )


def _has_total(record: Mapping[str, Any]) -> bool:
    energy = record["energy"]
    return energy is not None and energy["is_total"] and energy["repeats"] == record["repeats"]
