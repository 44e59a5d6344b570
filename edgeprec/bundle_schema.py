"""``bundle.json``: the manifest of a bundle, written in one canonical form and read strictly.

The same manifest always gives the same bytes: keys sorted, no clock, no host, no absolute path. Its key ``sha256`` is
the digest of the canonical text without that key, so that a flipped byte does not pass here either.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from edgeprec.bundle_model import ModelEntry
from edgeprec.errors import BundleError
from edgeprec.strict_json import Fields, parse_json

__all__ = [
    "MANIFEST_NAME",
    "MINIMUM_RUNTIME_VERSION",
    "SCHEMA_VERSION",
    "BundleManifest",
    "EngineEntry",
    "FileEntry",
]

MANIFEST_NAME = "bundle.json"
SCHEMA_VERSION = 1
MINIMUM_RUNTIME_VERSION = "0.1.0"
_SELF_DRAFT = {"sharing": {"all": "target"}}
_VERSION = re.compile(r"\d+(\.\d+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of a file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """An engine file built for one GPU generation by one version of a library."""

    kind: str  # "tensorrt", "tensorrt_rtx"
    sm: str  # "sm89"
    model: str  # "target", "draft"
    file: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """Everything ``bundle.json`` says. ``sources`` are the files exported from, ``files`` those of the bundle.

    ``draft`` is None without one and ``"self"`` where the target's INT4 variant drafts, which adds no file.
    """

    name: str
    export_fingerprint: str  # source digests and settings; an export with the same one gives the same bundle
    target: ModelEntry
    draft: ModelEntry | Literal["self"] | None = None
    sources: Mapping[str, FileEntry] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    engines: tuple[EngineEntry, ...] = ()
    edgeprec_version: str = field(default_factory=lambda: version("edgeprec"))
    minimum_runtime_version: str = MINIMUM_RUNTIME_VERSION

    def to_bytes(self) -> bytes:
        """Return the canonical text of ``bundle.json``."""
        values = self.to_json()
        return _canonical(values | {"sha256": hashlib.sha256(_canonical(values)).hexdigest()})

    def to_json(self) -> dict[str, Any]:
        """Return plain values, the text's own digest left out."""
        models: dict[str, Any] = {"target": self.target.to_json()}
        if self.draft is not None:
            models["draft"] = _SELF_DRAFT if self.draft == "self" else self.draft.to_json()
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "edgeprec_version": self.edgeprec_version,
            "minimum_runtime_version": self.minimum_runtime_version,
            "export_fingerprint": self.export_fingerprint,
            "sources": _files_to_json(self.sources),
            "models": models,
            "engines": [asdict(engine) for engine in self.engines],
            "files": _files_to_json(self.files),
        }

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> BundleManifest:
        """Read a manifest; ``where`` names it in errors.

        Raises:
            BundleError: it is of a newer schema, needs a newer EdgePrec, or is damaged.
        """
        values = parse_json(data, where=where, error=BundleError)
        fields = Fields(values, where=where, error=BundleError)
        _check_schema(fields.integer("schema_version", minimum=1), where)
        _check_digest(values, fields.text("sha256"), where)
        minimum = _check_runtime(fields.text("minimum_runtime_version"), where)
        models = fields.fields("models")
        manifest = cls(
            name=fields.text("name"),
            export_fingerprint=fields.text("export_fingerprint"),
            edgeprec_version=fields.text("edgeprec_version"),
            minimum_runtime_version=minimum,
            target=ModelEntry.from_json(models.mapping("target"), where=f"{where}: target"),
            draft=_draft(models.optional("draft", models.mapping), where),
            sources=_files_from_json(fields.mapping("sources"), f"{where}: sources"),
            files=_files_from_json(fields.mapping("files"), f"{where}: files"),
            engines=tuple(_engine(item, f"{where}: engines") for item in fields.items("engines")),
        )
        models.end()
        fields.end()
        _check_sharing(manifest, where)
        return manifest

    @property
    def referenced_files(self) -> tuple[str, ...]:
        """Return the files that the models and engines name."""
        drafts = self.draft.file_names if isinstance(self.draft, ModelEntry) else ()
        return (*self.target.file_names, *drafts, *(engine.file for engine in self.engines))


def _canonical(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _check_digest(values: dict[str, Any], expected: str, where: str) -> None:
    rest = {key: value for key, value in values.items() if key != "sha256"}
    found = hashlib.sha256(_canonical(rest)).hexdigest()
    if found != expected:
        raise BundleError(f"{where} does not match its own digest ({expected[:12]}...): copy or export it again")


def _check_schema(found: int, where: str) -> None:
    if found > SCHEMA_VERSION:
        raise BundleError(
            f"{where} has schema version {found}, this EdgePrec ({version('edgeprec')}) reads up to "
            f"{SCHEMA_VERSION}: update EdgePrec or export the bundle again"
        )


def _check_runtime(minimum: str, where: str) -> str:
    if not _VERSION.fullmatch(minimum):
        raise BundleError(f"{where}: minimum_runtime_version is {minimum[:40]!r}, expected one like '0.1.0'")
    if _numbers(minimum) > _numbers(version("edgeprec")):
        raise BundleError(f"{where} needs EdgePrec {minimum} or later, this is {version('edgeprec')}: update EdgePrec")
    return minimum


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, ``1.2.3rc1`` -> (1, 2, 3)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _draft(values: dict[str, Any] | None, where: str) -> ModelEntry | Literal["self"] | None:
    if values is None:
        return None
    return "self" if values == _SELF_DRAFT else ModelEntry.from_json(values, where=f"{where}: draft")


def _check_sharing(manifest: BundleManifest, where: str) -> None:
    """Refuse what could not be read together: a draft uses the target's embedding and head as if they were its own."""
    target, draft = manifest.target, manifest.draft
    if target.shares_embedding or target.shares_head:
        raise BundleError(f"{where}: the target claims to share tensors, expected only a draft to do so: it is damaged")
    if not isinstance(draft, ModelEntry) or not (draft.shares_embedding or draft.shares_head):
        return
    ours, theirs = draft.architecture, target.architecture
    must_equal = {
        "vocab_size": (ours.vocab_size, theirs.vocab_size),
        "hidden_size": (ours.hidden_size, theirs.hidden_size),
        "tied_embeddings": (ours.tied_embeddings, theirs.tied_embeddings),
    }
    if draft.shares_head:
        must_equal["INT4 group_size"] = (draft.int4.group_size, target.int4.group_size)
        must_equal["INT4 symmetric"] = (draft.int4.symmetric, target.int4.symmetric)
    for name, (found, expected) in must_equal.items():
        if found != expected:
            raise BundleError(
                f"{where}: the draft shares the target's tensors with {name} {found}, the target has {expected}: "
                "export the bundle again"
            )
    if ours.tied_embeddings and draft.shares_head and not draft.shares_embedding:
        raise BundleError(f"{where}: the tied draft shares the head without the embedding it is: export it again")


def _engine(values: Any, where: str) -> EngineEntry:
    fields = Fields(values, where=where, error=BundleError)
    engine = EngineEntry(**{key: fields.text(key) for key in ("kind", "sm", "model", "file", "version")})
    fields.end()
    return engine


def _files_to_json(files: Mapping[str, FileEntry]) -> dict[str, Any]:
    return {path: {"bytes": entry.size_bytes, "sha256": entry.sha256} for path, entry in files.items()}


def _files_from_json(values: dict[str, Any], where: str) -> dict[str, FileEntry]:
    return {path: _file_entry(entry, f"{where}: {path}") for path, entry in values.items()}


def _file_entry(values: Any, where: str) -> FileEntry:
    fields = Fields(values, where=where, error=BundleError)
    entry = FileEntry(fields.integer("bytes"), fields.text("sha256"))
    fields.end()
    if not _SHA256.fullmatch(entry.sha256):
        raise BundleError(f"{where}: sha256 is {entry.sha256[:70]!r}, expected 64 hexadecimal digits")
    return entry
