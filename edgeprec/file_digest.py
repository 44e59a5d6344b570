"""SHA-256 of a file or of a part of one, in pieces, so that progress can be shown and memory stays small."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["file_sha256", "range_sha256"]

_CHUNK_BYTES = 1 << 22


def file_sha256(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the hexadecimal digest of a file; ``on_bytes`` is told the size of each piece read."""
    return range_sha256(path, offset_bytes=0, length_bytes=sys.maxsize, on_bytes=on_bytes)


def range_sha256(
    path: Path, *, offset_bytes: int, length_bytes: int, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Return the hexadecimal digest of a range; a file that ends before it is digested up to its end."""
    digest, left = hashlib.sha256(), length_bytes
    with path.open("rb") as file:
        file.seek(offset_bytes)
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()
