"""A model to export, whatever file it comes from: its shape, its merged weights, its tokenizer, its sources' digests.

``open_checkpoint`` takes a Hugging Face folder, a hub id ``owner/name``, a GGUF file or a bundle.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.bundle_schema import MANIFEST_NAME
from edgeprec.errors import ConfigError, MissingDependency
from edgeprec.export.checkpoint_weights import CheckpointWeights, LinearName, NormName
from edgeprec.export.tensor_source import FloatArray
from edgeprec.export.tokenizer_files import TokenizerFiles

__all__ = ["Checkpoint", "FileCheckpoint", "SourceDigest", "digest_files", "open_checkpoint"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_GGUF_MAGIC = b"GGUF"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceDigest:
    """Size and SHA-256 (hexadecimal) of one source file."""

    bytes: int
    sha256: str


class Checkpoint(Protocol):
    """A model opened for export. Weights are read anew at every call; nothing is cached."""

    @property
    def name(self) -> str:
        """Return a short name: the folder's, the repository's or the file's."""
        ...

    @property
    def config(self) -> ModelConfig:
        """Return the model's shape and constants."""
        ...

    @property
    def tokenizer(self) -> TokenizerFiles:
        """Return what the bundle stores to tokenize text."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of this import, a sentence each."""
        ...

    @property
    def source_bytes(self) -> int:
        """Return the size of all source files together."""
        ...

    def digest_sources(self, progress: Callable[[int], None] | None = None) -> Mapping[str, SourceDigest]:
        """Read every source file and return file name -> digest; ``progress`` gets the bytes read since its last call.

        Raises:
            ConfigError: a file cannot be read.
        """
        ...

    def linear(self, layer: int, name: LinearName) -> FloatArray:
        """Return a merged linear [K, N], float16 or float32.

        Raises:
            ConfigError: a value is NaN, infinite or beyond FP16; the message names the tensor. So in all that follow.
        """
        ...

    def bias(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Return the bias of qkv [N], or None."""
        ...

    def norm(self, layer: int, name: NormName) -> npt.NDArray[np.float32]:
        """Return the scale of a norm: [D], or [head_dim] for ``q`` and ``k``."""
        ...

    def embedding(self) -> npt.NDArray[np.float16]:
        """Return the embedding table [V, D]."""
        ...

    def final_norm(self) -> npt.NDArray[np.float32]:
        """Return the scale of the last norm [D]."""
        ...

    def head(self) -> npt.NDArray[np.float16] | None:
        """Return the output head [D, V], or None where it is tied to the embedding."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheckpoint:
    """A checkpoint read from files; the weights come through ``weights``."""

    name: str
    config: ModelConfig
    weights: CheckpointWeights
    tokenizer: TokenizerFiles
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @property
    def source_bytes(self) -> int:
        """Return the size of all source files together."""
        return sum(path.stat().st_size for path in self.files)

    def digest_sources(self, progress: Callable[[int], None] | None = None) -> dict[str, SourceDigest]:
        """Read every source file and return file name -> digest."""
        return digest_files(self.files, progress)

    def linear(self, layer: int, name: LinearName) -> FloatArray:
        """Return a merged linear [K, N]."""
        return self.weights.linear(layer, name)

    def bias(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Return the bias of qkv [N], or None."""
        return self.weights.bias(layer)

    def norm(self, layer: int, name: NormName) -> npt.NDArray[np.float32]:
        """Return the scale of a norm."""
        return self.weights.norm(layer, name)

    def embedding(self) -> npt.NDArray[np.float16]:
        """Return the embedding table [V, D]."""
        return self.weights.embedding()

    def final_norm(self) -> npt.NDArray[np.float32]:
        """Return the scale of the last norm [D]."""
        return self.weights.final_norm()

    def head(self) -> npt.NDArray[np.float16] | None:
        """Return the output head [D, V], or None."""
        return self.weights.head()


def digest_files(files: Iterable[Path], progress: Callable[[int], None] | None = None) -> dict[str, SourceDigest]:
    """Read files and return file name -> digest; ``progress`` gets the bytes read since its last call.

    Raises:
        ConfigError: a file cannot be read.
    """
    return {path.name: _digest(path, progress) for path in files}


def open_checkpoint(source: str) -> Checkpoint:
    """Open ``source``: reads headers, configuration and tokenizer, no weights.

    Raises:
        ConfigError: there is nothing at ``source``, or it is not a checkpoint this version reads.
        MissingDependency: the format needs a package of the extra ``export``.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        return _open_file(path)
    if _HUB_ID.fullmatch(source):
        return _open_hub(source)
    raise ConfigError(f"there is no checkpoint at {source}: expected a folder, a GGUF file or a hub id owner/name")


def _open_folder(path: Path) -> Checkpoint:
    if (path / MANIFEST_NAME).exists():
        from edgeprec.export.bundle_checkpoint import open_bundle_checkpoint

        return open_bundle_checkpoint(path)
    if not (path / "config.json").exists():
        quantized = sorted(path.glob("*.gguf"))
        advice = (
            f"pass the file {quantized[0]} itself" if quantized else "expected a Hugging Face folder or a GGUF file"
        )
        raise ConfigError(f"{path} is not a checkpoint: it has no config.json; {advice}")
    from edgeprec.export.draft_facts import DRAFT_FILE
    from edgeprec.export.huggingface import open_huggingface

    if (path / DRAFT_FILE).exists():
        raise ConfigError(
            f"{path} is a draft without embedding and head, expected a whole checkpoint: export its target and give "
            "this one with --draft"
        )
    return open_huggingface(path)


def _open_file(path: Path) -> Checkpoint:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(
            f"{path} is not a checkpoint: it begins with {magic!r}, expected {_GGUF_MAGIC!r}; "
            "for safetensors pass the folder that holds them"
        )
    try:
        from edgeprec.export.gguf_checkpoint import open_gguf
    except ModuleNotFoundError as error:
        raise MissingDependency(package="gguf", purpose="reading a GGUF file", extra="export") from error
    return open_gguf(path)


def _open_hub(repo_id: str) -> Checkpoint:
    try:
        from edgeprec.export.hub import download_snapshot
    except ModuleNotFoundError as error:
        raise MissingDependency(package="huggingface_hub", purpose="fetching from the hub", extra="export") from error
    from edgeprec.export.huggingface import open_huggingface

    return open_huggingface(download_snapshot(repo_id), name=repo_id.split("/")[1])


def _digest(path: Path, progress: Callable[[int], None] | None) -> SourceDigest:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
                size_bytes += len(block)
                if progress is not None:
                    progress(len(block))
    except OSError as error:
        raise ConfigError(f"source file {path} cannot be read: {error.strerror}") from error
    return SourceDigest(size_bytes, digest.hexdigest())
