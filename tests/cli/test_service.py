"""``edgeprec service`` against a root folder and a ``systemctl`` of the test's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.cli import service
from edgeprec.runtime import systemd_account, systemd_install
from edgeprec.runtime.systemd_unit import Account


@dataclass(frozen=True)
class Machine:
    """A root folder, the bundle to serve, and what systemctl was told."""

    root: Path
    bundle: Path
    log: Path

    @property
    def unit(self) -> Path:
        """Where the machine's unit is."""
        return self.root / "etc/systemd/system/edgeprec.service"

    @property
    def settings(self) -> Path:
        """Where its settings are."""
        return self.root / "etc/default/edgeprec"

    @property
    def told(self) -> list[str]:
        """What systemctl was called with."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def files(self) -> set[Path]:
        """Return every file below the root and the user's folder."""
        return {path for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundles: ModuleType) -> Machine:
    """Return a machine whose user is root, with a systemctl that notes its words."""
    programs, log = tmp_path / "programs", tmp_path / "told"
    programs.mkdir()
    put_systemctl(programs, f'echo "$*" >> {log}')
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "root/config"))
    monkeypatch.setattr(service, "MACHINE_ROOT", tmp_path / "root")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(systemd_account, "known_groups", lambda: ("video",))
    monkeypatch.setattr(systemd_account, "account_for", lambda *_: Account(user=None, groups=("video",)))
    return Machine(tmp_path / "root", bundles.make_bundle(tmp_path / "pair.edgeprec"), log)


def put_systemctl(folder: Path, line: str) -> None:
    """Write a program of one line."""
    (folder / "systemctl").write_text(f"#!/bin/sh\n{line}\n")
    (folder / "systemctl").chmod(0o755)


def test_install_writes_enables_and_starts(machine: Machine, invoke: Callable[..., Any]) -> None:
    """Unit and settings are whole, readable by all, and systemd hears of them in the right order."""
    outcome = invoke("service", "install", str(machine.bundle))
    assert (outcome.code, outcome.err) == (0, "")
    assert f"serve {machine.bundle}\n" in machine.unit.read_text()
    assert machine.files() == {machine.unit, machine.settings}
    assert {path.stat().st_mode & 0o777 for path in machine.files()} == {0o644}
    told = ["daemon-reload", "enable edgeprec.service", "restart --no-block edgeprec.service"]
    assert machine.told == told
    assert "journalctl -u edgeprec" in outcome.out


def test_print_is_what_install_writes(machine: Machine, invoke: Callable[..., Any]) -> None:
    """Somebody who looks first sees the truth, and nothing happens."""
    printed = invoke("service", "print", str(machine.bundle)).out
    assert (machine.files(), machine.told) == (set(), [])
    invoke("service", "install", str(machine.bundle))
    assert machine.unit.read_text() == printed


@pytest.mark.parametrize("action", ["install", "remove"])
def test_a_dry_run_changes_nothing(
    machine: Machine, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """It needs neither root nor systemd, and names every file and command."""
    if action == "remove":
        invoke("service", "install", str(machine.bundle))
    before, told = {path: path.read_bytes() for path in machine.files()}, machine.told
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "")
    bundle = [str(machine.bundle)] if action == "install" else []
    outcome = invoke("service", action, *bundle, "--dry-run")
    assert outcome.code == 0
    assert str(machine.unit) in outcome.out
    assert "would run systemctl daemon-reload" in outcome.out
    assert ({path: path.read_bytes() for path in machine.files()}, machine.told) == (before, told)


def test_a_second_install_keeps_settings(machine: Machine, invoke: Callable[..., Any]) -> None:
    """What an owner wrote is never overwritten, and the service starts anew."""
    invoke("service", "install", str(machine.bundle))
    machine.settings.write_text("EDGEPREC_PORT=8081\n")
    outcome = invoke("service", "install", str(machine.bundle))
    assert outcome.code == 0
    assert machine.settings.read_text() == "EDGEPREC_PORT=8081\n"
    assert machine.told[-1] == "restart --no-block edgeprec.service"


def test_a_unit_that_differs_is_not_overwritten(machine: Machine, invoke: Callable[..., Any]) -> None:
    """Another bundle's unit, or one changed by hand, has to be removed knowingly."""
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    outcome = invoke("service", "install", str(machine.bundle))
    assert outcome.code == 2
    assert "exists and differs" in outcome.err
    assert "edgeprec service remove first" in outcome.err
    assert machine.unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert machine.told == []


def test_the_drain_in_the_settings_moves_the_time_to_stop(machine: Machine, invoke: Callable[..., Any]) -> None:
    """systemd must not kill a server that was told to finish for five minutes."""
    machine.settings.parent.mkdir(parents=True)
    machine.settings.write_text("EDGEPREC_DRAIN_SECONDS=300\n")
    assert "TimeoutStopSec=330\n" in invoke("service", "print", str(machine.bundle)).out


def test_remove_stops_and_keeps_settings(machine: Machine, invoke: Callable[..., Any]) -> None:
    """The unit goes, the settings stay and are named; a second time there is nothing to do."""
    invoke("service", "install", str(machine.bundle))
    machine.log.unlink()
    outcome = invoke("service", "remove")
    assert outcome.code == 0
    assert machine.told == ["disable --now edgeprec.service", "daemon-reload"]
    assert machine.files() == {machine.settings}
    assert "is kept" in outcome.out
    again = invoke("service", "remove")
    assert again.code == 0
    assert "nothing to remove" in again.out


def test_user_units_lie_in_the_users_folder(
    machine: Machine, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No root is needed, every systemctl is the user's, and what a login-less start takes is said."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = invoke("service", "install", str(machine.bundle), "--user")
    assert outcome.code == 0
    folder = machine.root / "config"
    assert machine.files() == {folder / "systemd/user/edgeprec.service", folder / "edgeprec/service.env"}
    assert "EnvironmentFile=-%E/edgeprec/service.env" in (folder / "systemd/user/edgeprec.service").read_text()
    assert all(line.startswith("--user ") for line in machine.told)
    assert "loginctl enable-linger" in outcome.out
    assert "usermod -aG video" in outcome.out
    assert invoke("service", "remove", "--user").code == 0
    assert machine.files() == {folder / "edgeprec/service.env"}


@pytest.mark.parametrize("action", ["install", "remove"])
def test_the_machines_service_needs_root(
    machine: Machine, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The error gives the command that works."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = invoke("service", action, *([str(machine.bundle)] if action == "install" else []))
    assert outcome.code == 2
    assert "needs root, this is user 1000" in outcome.err
    assert "sudo /" in outcome.err
    assert "--user" in outcome.err
    assert machine.files() == set()


def test_without_systemd(machine: Machine, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written where nobody would read it."""
    monkeypatch.setenv("PATH", "")
    outcome = invoke("service", "install", str(machine.bundle))
    assert outcome.code == 1
    assert "systemctl is not installed" in outcome.err
    assert machine.files() == set()


def test_what_systemd_refuses_is_told(machine: Machine, invoke: Callable[..., Any]) -> None:
    """Its own words are in the message."""
    put_systemctl(machine.log.with_name("programs"), "echo System has not been booted >&2; exit 1")
    outcome = invoke("service", "install", str(machine.bundle))
    assert outcome.code == 1
    assert "systemctl daemon-reload failed: System has not been booted" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("install",), 2, "needs a bundle"),
        (("print",), 2, "needs a bundle"),
        (("install", "nowhere.edgeprec"), 3, "nowhere.edgeprec"),
        (("remove", "pair.edgeprec"), 2, "takes no bundle"),
        (("start",), 2, "start"),
    ],
)
def test_arguments_that_cannot_be(
    machine: Machine, invoke: Callable[..., Any], arguments: tuple[str, ...], code: int, words: str
) -> None:
    """A bundle that is not there is found now, not at the next boot."""
    outcome = invoke("service", *arguments)
    assert outcome.code == code
    assert words in outcome.err
    assert machine.files() == set()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a crash never leaves half a unit, nor a stray file."""
    file = tmp_path / "edgeprec.service"
    file.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(systemd_install.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        systemd_install.write_atomically(file, "new")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("old", [file])
