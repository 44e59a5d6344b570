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
from edgeprec.runtime.benchmark_machine import MachineState, another_machine, read_state, unknown_state
from edgeprec.runtime.benchmark_peer import Peer, open_peer
from edgeprec.runtime.benchmark_peer_case import run_peer_case
from edgeprec.runtime.benchmark_record import Circumstances, make_record
from edgeprec.runtime.benchmark_repeat import Repeat
from edgeprec.runtime.session import Session

__all__ = ["Bench", "connect", "require_energy"]

Record = dict[str, Any]
_LARGEST_KEY = 1 << 16
_ONE_LINE = "write the key into it, one line of letters and digits"


def connect(values: Mapping[str, Any], cases: Sequence[Case]) -> Peer | None:
    """Return the server of ``--against``, None without one.

    Raises:
        ConfigError: its URL, model or key file cannot be used, or it cannot do what ``cases`` ask for.
        EngineError: it cannot be reached.
        EdgePrecError: it does not answer as such a server does.
    """
    if values["against"] is None:
        return None
    key = None if values["against_key_file"] is None else _read_key(values["against_key_file"])
    peer = open_peer(values["against"], model=values["against_model"], key=key, timeout_s=values["against_timeout"])
    for case in cases:
        peer.check(case.config)
    return peer


def _read_key(path: Path) -> str:
    """Return the one line of a key file. What is wrong with it is told without what stands in it."""
    try:
        with path.open(encoding="utf-8") as file:
            key = file.read(_LARGEST_KEY).strip()
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the key file {path} is not UTF-8 at byte {error.start}: {_ONE_LINE}") from None
    if not key:
        raise ConfigError(f"the key file {path} is empty: {_ONE_LINE}")
    if not (key.isascii() and key.isprintable()):
        count = len(key.splitlines())
        got = f"holds {count} lines" if count > 1 else "holds what no header of HTTP can carry"
        raise ConfigError(f"the key file {path} {got}: {_ONE_LINE}")
    return key


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
        about = _about_peer(self._about, peer)
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
        before = self._state(about)
        repeats: list[Repeat] = []
        self._show(ProgressEvent("bench", self._done, self._total, detail))
        try:
            for repeat in runs:
                repeats.append(repeat)
                self._done += 1
                self._show(ProgressEvent("bench", self._done, self._total, detail))
        finally:
            if repeats:
                record = make_record(about, case, repeats, before=before, after=self._state(about))
                record["graphs"] = None if about.server is not None else graph_facts(self._session)
                self.records.append(record)
                self._emit(record)

    def _state(self, about: Circumstances) -> MachineState:
        """Read the machine a case runs on, which a server's may not be."""
        reason = about.device["unknown"].get("device") if about.server is not None else None
        return read_state(self._files) if reason is None else unknown_state(reason)


def _about_peer(own: Circumstances, peer: Peer) -> Circumstances:
    """Return what a server's records have in common; what is known of this machine tells nothing of another one."""
    about = replace(own, engine=peer.engine, engine_device=None, threads=None, versions={}, server=peer.to_json())
    note = peer.energy_note
    if note is None:
        return about
    idle = {"watts": None, "seconds": 0.0, "power_mode": None, "note": note}
    return replace(about, device=another_machine(note), idle=idle, meter=None)


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
