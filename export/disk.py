"""Write bytes so that they stay, and say in one sentence why they cannot: disk full, folder not writable."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from edgeprec.errors import ConfigError, EdgePrecError

__all__ = [
    "WRITE_ERRORS",
    "allocate",
    "allocated_bytes",
    "disk_error",
    "free_bytes",
    "require_space",
    "sync_folder",
    "write_at",
    "write_file",
]

WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (
    errno.EACCES,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EPERM,
    errno.EROFS,
)


def free_bytes(folder: Path) -> int:
    """Return what an ordinary user may still write into the folder's file system."""
    return shutil.disk_usage(folder).free


def allocated_bytes(path: Path) -> int:
    """Return what a file, or the files under a folder, take up on the disk; nothing there takes up nothing."""
    paths = path.rglob("*") if path.is_dir() else (path,)
    return sum(512 * file.stat().st_blocks for file in paths if file.is_file())


def require_space(folder: Path, *, needed_bytes: int) -> None:
    """Refuse work that will not fit.

    Raises:
        EdgePrecError: fewer bytes are free than needed.
    """
    if free_bytes(folder) < needed_bytes:
        raise _disk_full(folder, needed_bytes)


def disk_error(error: OSError, folder: Path, *, needed_bytes: int) -> EdgePrecError:
    """Return what to tell the user of a failed write into ``folder``."""
    if error.errno in _NO_ROOM:
        return _disk_full(folder, needed_bytes)
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NOT_WRITABLE:
        return ConfigError(f"cannot write into {folder}: {reason}; choose another folder with -o")
    return EdgePrecError(f"writing into {folder} failed: {reason}; repeat the command with --resume")


def write_at(descriptor: int, data: memoryview, *, offset_bytes: int) -> None:
    """Write all of ``data`` at an offset of an open file."""
    while data:
        written = os.pwrite(descriptor, data, offset_bytes)
        data, offset_bytes = data[written:], offset_bytes + written


def allocate(descriptor: int, *, size_bytes: int) -> None:
    """Give the file its final size, and its blocks where the file system can reserve them."""
    os.ftruncate(descriptor, size_bytes)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def write_file(path: Path, data: bytes, *, scratch: Path) -> None:
    """Put a whole file in place at once, through a file ``scratch`` on the same file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(scratch, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        write_at(descriptor, memoryview(data), offset_bytes=0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(scratch, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_full(folder: Path, needed_bytes: int) -> EdgePrecError:
    return EdgePrecError(
        f"the disk is full: {folder} needs {needed_bytes:,} more bytes and {free_bytes(folder):,} are free; "
        "make room and repeat the command with --resume, or choose another folder with -o"
    )
