"""Small files of the kernel read one at a time: a value, or the reason why there is none. Knows no file by name.

``os.open`` with ``os.read`` is used on purpose: Python's file objects turn EAGAIN into TypeError, into an empty text or
into None, depending on the mode. Every path is relative to a root, so that a tree in a folder reads like a machine.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["GONE", "Number", "Reader", "Sysfs", "Text", "natural_key", "read_file"]

Reader = Callable[[str], bytes]  # absolute path -> content; raises OSError

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})  # the driver let go of the file

_LIMIT_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 16
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,9})?")
_DIGITS = re.compile(r"([0-9]+)")
_MEANINGS = {
    errno.ENODATA: "it is switched off or not connected",
    errno.ETIMEDOUT: "the chip did not finish a conversion in time",
    errno.EAGAIN: "it is offline or powered down",
    errno.EIO: "the bus reports an error",
    errno.EREMOTEIO: "the chip does not answer on the bus",
    errno.ENXIO: "the chip does not answer",
    errno.EPERM: "the kernel forbids it: run outside of the sandbox",
    errno.ENOENT: "there is no such file",
    errno.ENODEV: "the driver let go of it",
    errno.EISDIR: "it is a folder",
    errno.ESRCH: "the process has ended",
}


class Text(NamedTuple):
    """The text of a file, or None with the reason, and errno's number where the kernel gave one."""

    value: str | None
    reason: str | None = None
    code: int | None = None


class Number(NamedTuple):
    """The number in a file, or None with the reason, and errno's number where the kernel gave one."""

    value: float | None
    reason: str | None = None
    code: int | None = None


def read_file(path: str) -> bytes:
    """Return what a file holds, up to 16 MiB.

    Raises:
        OSError: it cannot be opened or read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        content = b""
        while (chunk := os.read(descriptor, _CHUNK_BYTES)) and len(content) < _LIMIT_BYTES:
            content += chunk
        return content
    finally:
        os.close(descriptor)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``hwmon2`` before ``hwmon10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


class Sysfs:
    """The files below one root. No method raises for a file that is missing, locked or damaged."""

    __slots__ = ("_prefix", "_reader")

    def __init__(self, root: Path = Path("/"), *, reader: Reader = read_file) -> None:
        self._prefix = str(root.absolute()).rstrip("/") + "/"
        self._reader = reader

    def text(self, path: str) -> Text:
        """Return the text of a file without surrounding white space and closing NUL; empty text is a reason."""
        try:
            content = self._reader(self._prefix + path)
        except OSError as error:
            return Text(None, self._explain(error, path), error.errno)
        text = content.decode("utf-8", errors="replace").strip("\0 \t\r\n")
        if not text:
            return Text(None, f"{_base(path)} is empty")
        return Text(text)

    def number(self, path: str) -> Number:
        """Return the number that is the whole text of a file."""
        text, reason, code = self.text(path)
        if text is None:
            return Number(None, reason, code)
        if not _NUMBER.fullmatch(text):
            return Number(None, f"{_base(path)} holds {text[:32]!r}, which is not a number")
        return Number(float(text))

    def leading_number(self, path: str) -> Number:
        """Return the number at the start of a file's text; a unit behind it is ignored: ``32760 ma``."""
        text, reason, code = self.text(path)
        if text is None:
            return Number(None, reason, code)
        first = text.split()[0]
        if not _NUMBER.fullmatch(first):
            return Number(None, f"{_base(path)} holds {text[:32]!r}, which does not start with a number")
        return Number(float(first))

    def strings(self, path: str) -> tuple[str, ...]:
        """Return the NUL-separated strings of a device-tree property, none when it cannot be read."""
        text = self.text(path).value
        return tuple(part for part in text.split("\0") if part) if text is not None else ()

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, numbers in them sorted as numbers; none when it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self._prefix + path), key=natural_key))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""
        return os.path.exists(self._prefix + path)

    def is_folder(self, path: str) -> bool:
        """Return whether a folder is there."""
        return os.path.isdir(self._prefix + path)

    def absolute(self, path: str) -> str:
        """Return the path with the root before it."""
        return self._prefix + path

    def real(self, path: str) -> str:
        """Return the absolute path with all links followed: equal for two ways to one folder."""
        return os.path.realpath(self._prefix + path)

    def _explain(self, error: OSError, path: str) -> str:
        name = errno.errorcode.get(error.errno or 0, "an error")
        if error.errno == errno.EACCES:
            return f"EACCES: {self._prefix}{path} may not be read by this user: sudo chmod a+r {self._prefix}{path}"
        meaning = _MEANINGS.get(error.errno or 0, error.strerror or "unknown")
        return f"{name}: {_base(path)}: {meaning}"


def _base(path: str) -> str:
    return path.rpartition("/")[2]
