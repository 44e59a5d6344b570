"""What a distilled draft's folder says of itself: the target it was made for, and from which of its layers it grew.

A draft reads its target's embedding, head and tokenizer. So two digests decide whether a target is the right one: of
the vocabulary, and of embedding and head in FP16. Layers may differ: a draft serves a target whose other weights were
tuned further, only with fewer of its tokens accepted.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.json_object import read_json_object
from edgeprec.vocabulary import Vocabulary

__all__ = ["DRAFT_FILE", "DraftFacts"]

DRAFT_FILE = "edgeprec_draft.json"
_SCHEMA_VERSION = 2  # 2: linears may be stored in four bits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """The content of ``edgeprec_draft.json``. ``layers`` are those of the target that the draft's began as."""

    target_name: str
    vocabulary_sha256: str
    ends_sha256: str  # of embedding and head
    layers: tuple[int, ...]

    @classmethod
    def of(cls, target: Checkpoint, layers: tuple[int, ...]) -> DraftFacts:
        """Return the facts of a draft for ``target``; reads embedding and head."""
        return cls(
            target_name=target.name,
            vocabulary_sha256=_vocabulary_digest(target),
            ends_sha256=_ends_digest(target),
            layers=layers,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the file's content."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "shares": ["embedding", "head"],
            "target": {
                "name": self.target_name,
                "vocabulary_sha256": self.vocabulary_sha256,
                "ends_sha256": self.ends_sha256,
            },
            "layers": list(self.layers),
        }

    @classmethod
    def read(cls, folder: Path) -> DraftFacts:
        """Read a draft folder's file.

        Raises:
            ConfigError: it is damaged or of a newer version.
        """
        path = folder / DRAFT_FILE
        raw = read_json_object(path)
        if raw.integer("schema_version") > _SCHEMA_VERSION:
            raise ConfigError(f"{path} was written by a newer EdgePrec: update this one to read it")
        target, layers = raw.child("target"), raw.get("layers", [])
        values = {} if target is None else {name: target.get(name) for name in ("name", *_DIGESTS)}
        are_texts = len(values) == 1 + len(_DIGESTS) and all(isinstance(value, str) for value in values.values())
        if not are_texts or not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
            raise ConfigError(f"{path} does not say for which target the draft was made: distill it again")
        return cls(target_name=values.pop("name"), layers=tuple(layers), **values)

    def require(self, target: Checkpoint, *, draft_name: str) -> None:
        """Check that ``target`` is one this draft can share with.

        Raises:
            ConfigError: its tokenizer, or its embedding or head, is not that of the draft's own target.
        """
        made_for = f"the draft {draft_name} was made for {self.target_name}"
        advice = f"distill one with edgeprec distill {target.name}, or export with --draft self"
        if self.vocabulary_sha256 != _vocabulary_digest(target):
            raise ConfigError(f"{made_for}, whose tokenizer is not that of {target.name}: {advice}")
        if self.ends_sha256 != _ends_digest(target):
            raise ConfigError(f"{made_for}, whose embedding or head is not that of {target.name}: {advice}")


_DIGESTS = ("vocabulary_sha256", "ends_sha256")


def _vocabulary_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256 of the tokens by id and of which are special: equal for equal vocabularies."""
    vocabulary = Vocabulary.from_tokenizer_json(
        checkpoint.tokenizer.tokenizer_json,
        width=checkpoint.config.vocab_size,
        where=f"the tokenizer of {checkpoint.name}",
    )
    digest = hashlib.sha256()
    for index, token in enumerate(vocabulary.tokens):
        digest.update(f"{token!r}{index in vocabulary.specials}\n".encode())
    return digest.hexdigest()


def _ends_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256 of the FP16 embedding [V, D] and, where it is not tied, the head [D, V]."""
    digest = hashlib.sha256(np.ascontiguousarray(checkpoint.embedding()).tobytes())
    head = checkpoint.head()
    if head is not None:
        digest.update(np.ascontiguousarray(head).tobytes())
    return digest.hexdigest()
