"""The cache folder: ``$EDGEPREC_CACHE``, else ``~/.cache/edgeprec``."""

from __future__ import annotations

import os
from pathlib import Path

from edgeprec.errors import ConfigError

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return the cache folder, made if absent.

    Raises:
        ConfigError: it cannot be made.
    """
    folder = Path(os.environ.get("EDGEPREC_CACHE") or Path.home() / ".cache" / "edgeprec").expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be made ({error.strerror}): name another with EDGEPREC_CACHE"
        ) from error
    return folder
