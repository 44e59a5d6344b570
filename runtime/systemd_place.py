"""Where units and settings lie: for the whole machine, or for one user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["UNIT_NAME", "Place"]

UNIT_NAME = "edgeprec.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``settings_reference`` is how the unit names the settings file. ``flags`` go to every systemctl."""

    unit: Path
    settings: Path
    settings_reference: str
    flags: tuple[str, ...]

    @property
    def is_user(self) -> bool:
        """Whether it belongs to one user's manager."""
        return bool(self.flags)

    @classmethod
    def of_machine(cls, root: Path = Path("/")) -> Place:
        """Return the machine's place below ``root``."""
        return cls(
            unit=root / "etc/systemd/system" / UNIT_NAME,
            settings=root / "etc/default/edgeprec",
            settings_reference="/etc/default/edgeprec",
            flags=(),
        )

    @classmethod
    def of_user(cls, environ: Mapping[str, str], home: Path) -> Place:
        """Return the place of the user whose environment this is; ``%E`` in the unit is the same folder."""
        folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return cls(
            unit=folder / "systemd/user" / UNIT_NAME,
            settings=folder / "edgeprec/service.env",
            settings_reference="%E/edgeprec/service.env",
            flags=("--user",),
        )
