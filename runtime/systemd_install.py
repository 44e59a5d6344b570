"""Install and remove the unit: files written whole or not at all, then what systemd has to be told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.runtime.systemd_place import UNIT_NAME, Place

__all__ = ["DryRun", "Steps", "install_unit", "remove_unit", "run_systemctl", "write_atomically"]


class Steps:
    """Carries out what changes the machine. ``systemctl`` gets the words behind the program's name."""

    def __init__(self, *, say: Callable[[str], None], systemctl: Callable[[Sequence[str]], None]) -> None:
        self.say = say
        self._systemctl = systemctl

    def write(self, path: Path, text: str) -> None:
        """Write a file."""
        write_atomically(path, text)
        self.say(f"wrote {path}")

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()
        self.say(f"removed {path}")

    def tell_systemd(self, *words: str) -> None:
        """Run systemctl."""
        self._systemctl(words)
        self.say(f"ran systemctl {' '.join(words)}")


class DryRun(Steps):
    """Says what would be done, and does nothing."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        super().__init__(say=say, systemctl=lambda _words: None)

    def write(self, path: Path, text: str) -> None:
        """Show the file."""
        self.say(f"would write {path}:\n{text}")

    def remove(self, path: Path) -> None:
        """Say which file."""
        self.say(f"would remove {path}")

    def tell_systemd(self, *words: str) -> None:
        """Say which command."""
        self.say(f"would run systemctl {' '.join(words)}")


def install_unit(place: Place, text: str, steps: Steps) -> None:
    """Write unit and, where there is none, settings; enable and start the service without waiting for the model.

    Raises:
        ConfigError: another unit of that name is installed.
        EdgePrecError: systemd refuses.
    """
    installed = _read(place.unit)
    if installed not in (None, text):
        raise ConfigError(
            f"{place.unit} exists and differs from what would be written: look at it with "
            f"systemctl {' '.join((*place.flags, 'cat'))} {UNIT_NAME}, then run edgeprec service remove first"
        )
    if installed is None:
        steps.write(place.unit, text)
    else:
        steps.say(f"{place.unit} is as it should be")
    if _read(place.settings) is None:
        steps.write(place.settings, _settings_text(place))
    else:
        steps.say(f"{place.settings} exists and is kept")
    steps.tell_systemd(*place.flags, "daemon-reload")
    steps.tell_systemd(*place.flags, "enable", UNIT_NAME)
    steps.tell_systemd(*place.flags, "restart", "--no-block", UNIT_NAME)


def remove_unit(place: Place, steps: Steps) -> None:
    """Stop and disable the service and remove its unit; settings stay. Nothing happens where nothing is installed.

    Raises:
        EdgePrecError: systemd refuses.
    """
    if _read(place.unit) is None:
        steps.say(f"there is no {place.unit}: nothing to remove")
        return
    steps.tell_systemd(*place.flags, "disable", "--now", UNIT_NAME)
    steps.remove(place.unit)
    steps.tell_systemd(*place.flags, "daemon-reload")
    if _read(place.settings) is not None:
        steps.say(f"{place.settings} is kept: remove it if you do not come back")


def run_systemctl(words: Sequence[str]) -> None:
    """Run systemctl.

    Raises:
        EdgePrecError: it is absent, or it fails; its own words are in the message.
    """
    try:
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise EdgePrecError(
            "systemctl is not installed, so there is no systemd to install into: run edgeprec serve under whatever "
            "starts services here; edgeprec service print shows the unit"
        ) from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise EdgePrecError(f"systemctl {' '.join(words)} failed: {reason}")


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside ``path``, then rename it: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _settings_text(place: Place) -> str:
    text = files("edgeprec.runtime").joinpath("edgeprec.default").read_text(encoding="utf-8")
    return text.replace("systemctl restart", "systemctl --user restart") if place.is_user else text


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
