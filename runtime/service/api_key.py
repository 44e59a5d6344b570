"""The keys a client may show: read from a file that nobody else can read, compared in constant time."""

from __future__ import annotations

import hmac
import stat
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from edgeprec.errors import ConfigError

__all__ = ["AnyKey", "KeyFile", "Keys"]

_MIN_CHARACTERS = 16


class Keys(Protocol):
    """Who may come in."""

    def accept(self, key: str | None) -> bool:
        """Whether a request that shows ``key``, None = none, may be answered."""
        ...


class AnyKey:
    """Lets everybody in, whatever key they show: OpenAI's clients always show one."""

    def accept(self, key: str | None) -> bool:
        """Say yes."""
        return True


class KeyFile:
    """Lets those in who show one of the file's keys: one a line, empty lines and lines that begin with # left out."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Read the keys.

        Raises:
            ConfigError: the file cannot be read, others may read or change it, or it holds no good key.
        """
        try:
            with path.open("rb") as file:
                _check_mode(path, stat.S_IMODE(path.stat().st_mode))
                lines = file.read().decode("utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"the API key file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"the API key file {path} is not UTF-8 at byte {error.start}: write it again") from error
        keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
        if not keys:
            raise ConfigError(f"the API key file {path} holds no key: write one a line")
        if any(len(key) < _MIN_CHARACTERS or not key.isascii() or not key.isprintable() for key in keys):
            raise ConfigError(
                f"the API key file {path} holds a key that is shorter than {_MIN_CHARACTERS} characters or not plain "
                "ASCII: make one with openssl rand -hex 32"
            )
        return cls(keys)

    def accept(self, key: str | None) -> bool:
        """Compare with every key, always all of them."""
        shown = _digest(key or "")
        matches = [hmac.compare_digest(shown, digest) for digest in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    """Keys of any length take the same time once they are digests."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _check_mode(path: Path, mode: int) -> None:
    """The group may read it, as service managers arrange it; nobody else may, and only the owner may change it."""
    if mode & 0o027:
        raise ConfigError(f"the API key file {path} has the permissions {mode:04o}, which let others in: chmod 600 it")
