"""Hold a folder for one process at a time; the kernel frees it whatever way the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from edgeprec.errors import ConfigError

__all__ = ["FolderLock"]


class FolderLock:
    """An exclusive lock on ``folder/lock``, a file that names its holder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            ConfigError: another process holds it.
        """
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_still_there(descriptor)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
                raise
            raise ConfigError(
                f"another export (process {holder or 'unknown'}) is writing into {self._path.parent}: "
                "wait for it or choose another folder with -o"
            ) from error
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_still_there(self, descriptor: int) -> None:
        """Refuse a lock on a file that its holder removed between our open and our lock."""
        if os.stat(self._path).st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(errno.ENOENT, "the lock was replaced", str(self._path))
