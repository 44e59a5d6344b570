"""Download a checkpoint from the Hugging Face hub, only the files the reader needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from edgeprec.errors import ConfigError, EngineError
from edgeprec.export.hf_tokenizer import TOKENIZER_FILES

__all__ = ["download_snapshot"]

_WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
_UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights
_HTTP: Any = HfHubHTTPError.__mro__[1]  # of requests or of httpx, by the hub's version: its errors need be no OSError
_NO_NETWORK: tuple[Any, ...] = (LocalEntryNotFoundError, ConnectionError, TimeoutError, _HTTP)


def download_snapshot(repo_id: str) -> Path:
    """Return the folder of a hub checkpoint, from the local cache where it is whole.

    Raises:
        ConfigError: there is no such repository, or no access to it.
        EngineError: no network, and it is not cached.
    """
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except (OSError, ValueError, HfHubHTTPError, _HTTP) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, _NO_NETWORK) and not isinstance(error, HfHubHTTPError):
            raise EngineError(
                f"{repo_id} is no local folder or file, it is not in the hub's cache, and the hub cannot be reached "
                f"({reason}): connect to the network, or pass the path of a downloaded checkpoint"
            ) from error
        raise ConfigError(
            f"{repo_id} is no local folder or file, and the hub did not give it ({type(error).__name__}: {reason}): "
            "check the name, or pass the path of a downloaded checkpoint"
        ) from error
