"""Download a checkpoint from the Hugging Face hub, only the files the reader needs."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from edgeprec.errors import ConfigError
from edgeprec.export.hf_tokenizer import TOKENIZER_FILES

__all__ = ["download_snapshot"]

_WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
_UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def download_snapshot(repo_id: str) -> Path:
    """Return the folder of a hub checkpoint, from the local cache where it is whole.

    Raises:
        ConfigError: there is no such repository, no access to it, or no network and nothing cached.
    """
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{repo_id} is no local folder or file, and the hub did not give it ({type(error).__name__}: {reason}): "
            "check the name and the network, or pass the path of a downloaded checkpoint"
        ) from error
