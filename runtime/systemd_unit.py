"""The text of the systemd unit. Knows what stands in it and why; not where it goes.

The templates lie beside this file. Their lines follow systemd.exec(5) and systemd.service(5).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from edgeprec.errors import ConfigError

__all__ = ["STOP_MARGIN_SECONDS", "Account", "UnitFacts", "command_line", "drain_seconds", "unit_text"]

STOP_MARGIN_SECONDS = 30  # after the drain: ten to cancel what is left, the rest to free memory and leave
_TEMPLATES = {False: "edgeprec.service", True: "edgeprec-user.service"}
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_DRAIN = re.compile(r"""^\s*EDGEPREC_DRAIN_SECONDS=["']?([^"'\s]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who the service runs as: ``user`` None = a user systemd makes for it. ``groups`` open the GPU's devices."""

    user: str | None
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """What differs between two machines' units. Paths are absolute; ``account`` None = a unit of one user's manager.

    ``reads`` are other places it needs: the interpreter, the package. ``settings`` is what stands behind
    ``EnvironmentFile=-``; it may begin with a specifier such as ``%E``.
    """

    program: Path
    bundle: Path
    reads: tuple[Path, ...] = ()
    settings: str
    drain_seconds: float
    account: Account | None


def unit_text(facts: UnitFacts) -> str:
    """Return the unit file.

    Raises:
        ConfigError: a path holds a line break, which no unit file can name.
    """
    values = {
        "model": _escape_specifiers(_printable(facts.bundle.name.removesuffix(".edgeprec"))),
        "exec_start": command_line(facts.program, "serve", facts.bundle),
        "settings": facts.settings,
        "stop_seconds": str(math.ceil(facts.drain_seconds) + STOP_MARGIN_SECONDS),
    }
    if facts.account is not None:
        places = (facts.program, facts.bundle, *facts.reads)
        values |= {"account": _account(facts.account), "home": _home(places), "tmp": _tmp(places)}
    template = files("edgeprec.runtime").joinpath(_TEMPLATES[facts.account is None]).read_text(encoding="utf-8")
    return _fill(template, values)


def command_line(*words: str | Path) -> str:
    """Return words as ``ExecStart=`` takes them: quoted where needed, ``%`` and ``$`` doubled.

    Raises:
        ConfigError: a word holds a line break.
    """
    return " ".join(_quote(_printable(str(word))) for word in words)


def drain_seconds(settings_text: str, default: float) -> float:
    """Return the drain time a settings file asks for; the last line counts, as it does for systemd.

    Raises:
        ConfigError: it is no number of seconds.
    """
    found = _DRAIN.findall(settings_text)
    if not found:
        return default
    try:
        seconds = float(found[-1])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"the settings file has EDGEPREC_DRAIN_SECONDS={found[-1]}, expected 0 or more seconds")
    return seconds


def _fill(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def _account(account: Account) -> str:
    lines = (
        ["# A user of its own, made for as long as it runs.", "DynamicUser=yes"]
        if account.user is None
        else ["# Strangers cannot read program or bundle: it runs as their owner.", f"User={account.user}"]
    )
    if account.groups:
        lines += ["# The GPU's devices, and jtop where it is installed."]
        lines += [f"SupplementaryGroups={' '.join(account.groups)}"]
    return "\n".join(lines)


def _home(places: tuple[Path, ...]) -> str:
    if any(_is_below(place, _HOMES) for place in places):
        return (
            "# Program, Python or bundle lie in a home folder: homes can be read, not changed.\nProtectHome=read-only"
        )
    return "# Nothing it needs lies in a home folder.\nProtectHome=yes"


def _tmp(places: tuple[Path, ...]) -> str:
    if any(_is_below(place, _TEMPORARY) for place in places):
        return (
            "# Program, Python or bundle lie in /tmp, which PrivateTmp would hide. Move them: /tmp is emptied at boot."
        )
    return "# Its temporary files are seen by nobody else.\nPrivateTmp=yes"


def _is_below(place: Path, folders: tuple[Path, ...]) -> bool:
    return any(place.is_relative_to(folder) for folder in folders)


def _printable(word: str) -> str:
    if not word.isprintable():
        raise ConfigError(f"the path {word!r} holds a character no unit file can name: rename it")
    return word


def _escape_specifiers(word: str) -> str:
    return word.replace("%", "%%")


def _quote(word: str) -> str:
    escaped = _escape_specifiers(word).replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if re.search(r"[\s'\"\\;]", word) else escaped
