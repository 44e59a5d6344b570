"""Who the service runs as: a user of its own where everybody may read program and bundle, else the bundle's owner."""

from __future__ import annotations

import grp
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgeprec.errors import ConfigError
from edgeprec.runtime.systemd_unit import Account

__all__ = ["DEVICE_GROUPS", "account_for", "known_groups"]

DEVICE_GROUPS = ("video", "render", "jtop")  # nvmap and nvhost; render nodes; the socket of jetson-stats


def known_groups() -> tuple[str, ...]:
    """Return the device groups this machine has: a unit that names another does not start (216/GROUP)."""
    names = {group.gr_name for group in grp.getgrall()}
    return tuple(name for name in DEVICE_GROUPS if name in names)


def account_for(bundle: Path, programs: Iterable[Path], groups: Iterable[str]) -> Account:
    """Choose by the permissions of what must be read: the bundle, and ``programs`` with all folders on the way.

    Raises:
        ConfigError: strangers may not read it, and its owner is root.
    """
    closed = next((path for path in _needed(bundle, programs) if not _is_open(path)), None)
    if closed is None:
        return Account(user=None, groups=tuple(groups))
    owner_id = bundle.stat().st_uid
    if owner_id == 0:
        raise ConfigError(
            f"only root can read {closed}, and the service does not run as root: "
            f"put program and bundle where everybody can read them, as with chmod -R a+rX {bundle}"
        )
    return Account(user=_name(owner_id), groups=tuple(groups))


def _needed(bundle: Path, programs: Iterable[Path]) -> Iterator[Path]:
    """Yield folders on the way, then files."""
    for path in (*programs, bundle):
        yield from reversed(_parents(path))
        yield path
    yield from sorted(bundle.rglob("*"))


def _parents(path: Path) -> list[Path]:
    return list(path.parents)


def _is_open(path: Path) -> bool:
    mode = path.stat().st_mode
    wanted = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return bool(mode & wanted)


def _name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
