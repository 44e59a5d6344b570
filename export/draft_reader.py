"""Open a distilled draft together with the target it shares embedding, head and tokenizer with."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import numpy as np

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint, FileCheckpoint
from edgeprec.export.checkpoint_weights import CheckpointWeights
from edgeprec.export.draft_facts import DRAFT_FILE, DraftFacts
from edgeprec.export.draft_weights import Int4GridSource
from edgeprec.export.hf_config import read_model_config
from edgeprec.export.huggingface import HF_ROLE_NAMES, find_shards
from edgeprec.export.json_object import read_json_object
from edgeprec.export.safetensors_file import SafetensorsSource
from edgeprec.export.tensor_source import FloatArray, TensorSource

__all__ = ["is_shared_draft", "open_draft"]

_EMBEDDING, _HEAD = HF_ROLE_NAMES["embedding"], HF_ROLE_NAMES["head"]
_MUST_EQUAL = ("vocab_size", "hidden_size", "tied_embeddings")


def is_shared_draft(source: str) -> bool:
    """Return whether ``source`` is the folder of a draft that shares parts of its target."""
    return (Path(source).expanduser() / DRAFT_FILE).is_file()


def open_draft(folder: Path, target: Checkpoint) -> FileCheckpoint:
    """Return the whole draft: its own layers, the target's embedding, head and tokenizer.

    Raises:
        ConfigError: the folder is damaged or of a newer version, or the draft was made for another target.
    """
    name = folder.resolve().name
    DraftFacts.read(folder).require(target, draft_name=name)
    config = read_model_config(read_json_object(folder / "config.json"), has_head=False)
    _require_shape(folder, config, target.config)
    shards = find_shards(folder)
    own = Int4GridSource(SafetensorsSource.open(shards, origin=str(folder)), tuple(shards))
    return FileCheckpoint(
        name=name,
        config=config,
        weights=CheckpointWeights(config, _SharingSource(own, target), HF_ROLE_NAMES),
        tokenizer=target.tokenizer,
        files=(folder / "config.json", folder / DRAFT_FILE, *shards),
    )


class _SharingSource:
    """The draft's tensors, and the target's embedding and head under their Hugging Face names."""

    def __init__(self, own: TensorSource, target: Checkpoint) -> None:
        self._own = own
        self._target = target
        self._shared = {_EMBEDDING} if target.config.tied_embeddings else {_EMBEDDING, _HEAD}

    @property
    def origin(self) -> str:
        """Return the draft's folder."""
        return self._own.origin

    @property
    def names(self) -> Set[str]:
        """Return all names, shared ones included."""
        return self._own.names | self._shared

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        config = self._target.config
        return (config.vocab_size, config.hidden_size) if name in self._shared else self._own.shape(name)

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start`` to ``stop``."""
        if name not in self._shared:
            return self._own.read_rows(name, start, stop)
        head = self._target.head() if name == _HEAD else None
        return self._target.embedding()[start:stop] if head is None else np.ascontiguousarray(head[:, start:stop].T)


def _require_shape(folder: Path, config: ModelConfig, target: ModelConfig) -> None:
    for name in _MUST_EQUAL:
        got, expected = getattr(config, name), getattr(target, name)
        if got != expected:
            raise ConfigError(
                f"{folder / 'config.json'} says {name} {got}, the draft's target has {expected}: distill it again"
            )
