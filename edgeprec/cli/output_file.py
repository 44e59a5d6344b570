"""Files a command writes beside its output: refused before the work if they cannot be written, then written whole."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from edgeprec.errors import ConfigError

__all__ = ["check_writable", "write_whole"]


def check_writable(path: Path, *, flag: str) -> None:
    """Check that ``path`` could be written now.

    Raises:
        ConfigError: its folder is missing, it is a folder itself, it would lie in a bundle, or permissions forbid it.
    """
    from edgeprec.cli.output_guard import require_outside_bundles

    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"{flag} {path}: the folder {folder} does not exist; make it first")
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder, expected a file name")
    require_outside_bundles(path, flag=flag)
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{flag} {path} cannot be written: permission denied")


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to a temporary sibling and rename it, so that a reader never sees half a file."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.close()
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
