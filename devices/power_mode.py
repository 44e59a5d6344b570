"""The power mode that nvpmodel has set on a Jetson: from its state file, or from the tool, never while sampling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgeprec.devices.sysfs import Sysfs
from edgeprec.devices.tool import RunTool, run_tool

__all__ = ["PowerMode", "PowerModes", "fastest_mode", "parse_query", "read_power_modes"]

_CONFIGURATION = "etc/nvpmodel.conf"
_STATE = "var/lib/nvpmodel/status"
_TOOLS = ("usr/sbin/nvpmodel", "usr/bin/nvpmodel", "sbin/nvpmodel")
_TIMEOUT_S = 2.0  # on a busy board the tool has been seen to take longer: the mode is then not known

_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d{1,6})\s+NAME=([^\s>].*?)\s*>")
_DEFAULT = re.compile(r"<\s*PM_CONFIG\s+DEFAULT=(\d{1,6})\s*>")
_CORE_ON = re.compile(r"CPU_ONLINE\s+CORE_\d+\s+1")
_STATE_ID = re.compile(r"pmode:\s*(\d{1,6})")
_QUERY_NAME = re.compile(r"NV Power Mode:\s*(\S.*)")
_NUMBER = re.compile(r"[0-9]{1,6}")
_WATTS = re.compile(r"(\d{1,4})W(?![A-Za-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerMode:
    """A mode that can be chosen. ``cores`` is None where the configuration does not list them."""

    id: int
    name: str
    cores: int | None = None

    @property
    def watts(self) -> int | None:
        """Return the watts in its name: 20 for ``MODE_20W_6CORE``, None for ``MAXN``."""
        found = _WATTS.search(self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModes:
    """The mode that is set and those that could be. ``id`` and ``name`` are None where they are not known."""

    id: int | None
    name: str | None
    origin: str | None  # the file or tool that told
    default_id: int | None
    modes: tuple[PowerMode, ...]
    reason: str | None

    @property
    def label(self) -> str | None:
        """Return what a reading of energy calls the mode: ``MODE_30W``, or ``mode 7`` for one without a name."""
        return self.name if self.name is not None or self.id is None else f"mode {self.id}"

    @property
    def fastest(self) -> PowerMode | None:
        """Return the mode that lets the board run fastest, which is not always mode 0."""
        return fastest_mode(self.modes)

    def to_json(self) -> dict[str, object]:
        """Return the modes as plain values."""
        fastest = self.fastest
        return {
            "id": self.id,
            "name": self.name,
            "origin": self.origin,
            "default_id": self.default_id,
            "modes": [{"id": mode.id, "name": mode.name, "cores": mode.cores} for mode in self.modes],
            "fastest": None if fastest is None else {"id": fastest.id, "name": fastest.name},
            "reason": self.reason,
        }


def read_power_modes(sysfs: Sysfs, *, run: RunTool = run_tool) -> PowerModes:
    """Find out the mode. The tool is asked only where the state file does not tell, once, with a time limit."""
    modes, default_id = _parse_configuration(sysfs.text(_CONFIGURATION).value or "")
    names = {mode.id: mode.name for mode in modes}
    state = _STATE_ID.search(sysfs.text(_STATE).value or "")
    if state is not None:
        number = int(state[1])
        return PowerModes(
            id=number, name=names.get(number), origin=f"/{_STATE}", default_id=default_id, modes=modes, reason=None
        )
    number_or_none, name, reason = _ask(sysfs, run)
    return PowerModes(
        id=number_or_none,
        name=name or (None if number_or_none is None else names.get(number_or_none)),
        origin=None if reason is not None else "nvpmodel -q",
        default_id=default_id,
        modes=modes,
        reason=reason,
    )


def parse_query(text: str) -> tuple[int | None, str | None]:
    """Return number and name from what ``nvpmodel -q`` prints; warnings may stand before, between and after."""
    lines = [line.strip() for line in text.splitlines()]
    for index, line in enumerate(lines):
        if found := _QUERY_NAME.search(line):
            number = next((int(later) for later in lines[index + 1 :] if _NUMBER.fullmatch(later)), None)
            return number, found[1]
    return None, None


def fastest_mode(modes: Sequence[PowerMode]) -> PowerMode | None:
    """Return the mode named MAXN, the super one if there are several, else that of most watts, then of most cores."""
    unlimited = [mode for mode in modes if mode.name.upper().startswith("MAXN")]
    if unlimited:
        return max(unlimited, key=lambda mode: ("SUPER" in mode.name.upper(), mode.cores or 0))
    return max(
        (mode for mode in modes if mode.watts is not None),
        key=lambda mode: (mode.watts or 0, mode.cores or 0),
        default=None,
    )


def _parse_configuration(text: str) -> tuple[tuple[PowerMode, ...], int | None]:
    starts = list(_MODE.finditer(text))
    modes = []
    for index, found in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        cores = len(_CORE_ON.findall(text, found.end(), end))
        modes.append(PowerMode(id=int(found[1]), name=found[2], cores=cores or None))
    default = _DEFAULT.search(text)
    return tuple(modes), int(default[1]) if default else None


def _ask(sysfs: Sysfs, run: RunTool) -> tuple[int | None, str | None, str | None]:
    tool = next((path for path in _TOOLS if sysfs.exists(path)), None)
    if tool is None:
        return None, None, "nvpmodel is not installed, and its state file does not exist"
    output = run([sysfs.absolute(tool), "-q"], _TIMEOUT_S)
    if output.text is None:
        return None, None, output.reason or "nvpmodel gave no answer"
    number, name = parse_query(output.text)
    if number is None and name is None:
        return None, None, f"nvpmodel -q names no mode: {' '.join(output.text.split())[:120] or 'it printed nothing'}"
    return number, name, None
