"""A bundle on disk: opened cheaply, its files reached by name and never outside its folder.

Opening parses ``bundle.json`` and looks at the size of every file; it reads no weights (``edgeprec.bundle_verify``
does).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from edgeprec.architecture import ModelConfig
from edgeprec.bundle_model import ModelEntry
from edgeprec.bundle_schema import MANIFEST_NAME, BundleManifest
from edgeprec.errors import BundleError
from edgeprec.tensor_file import TensorFile

__all__ = ["CALIBRATION", "CHAT_TEMPLATE", "GENERATION", "TOKENIZER", "Bundle", "BundleModel"]

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION = "generation.json"
CALIBRATION = "calibration.json"
_REQUIRED = (TOKENIZER, GENERATION)
_MANIFEST_LIMIT_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One model of an open bundle. ``role`` is ``"target"`` or ``"draft"``."""

    bundle: Bundle
    role: str
    entry: ModelEntry

    @property
    def architecture(self) -> ModelConfig:
        """Return the model's shape."""
        return self.entry.architecture

    @property
    def fp16_path(self) -> Path:
        """Return the file of the FP16 variant, which also holds embedding, norms and biases."""
        return self.bundle.path(self.entry.fp16.file)

    @property
    def int4_path(self) -> Path:
        """Return the file of the INT4 variant."""
        return self.bundle.path(self.entry.int4.file)

    @property
    def tokenizer_path(self) -> Path:
        """Return the model's own tokenizer: a draft may carry one, else it uses the target's."""
        own = f"{self.role}/{TOKENIZER}"
        return self.bundle.path(own if own in self.bundle.manifest.files else TOKENIZER)

    def graph_path(self, compute: str) -> Path:
        """Return the ONNX graph that computes in ``"fp32"`` or ``"fp16"``.

        Raises:
            BundleError: the bundle has no such graph.
        """
        if compute not in self.entry.graphs:
            raise BundleError(
                f"{self.bundle.root}: the {self.role} has no {compute} graph, only {sorted(self.entry.graphs)}: "
                "export it again"
            )
        return self.bundle.path(self.entry.graphs[compute])

    def open_fp16(self) -> TensorFile:
        """Map the FP16 file and check that it holds exactly this model's tensors."""
        file = TensorFile.open(self.fp16_path)
        file.require(self.entry.fp16_specs)
        return file

    def open_int4(self) -> TensorFile:
        """Map the INT4 file and check that it holds exactly this model's tensors."""
        file = TensorFile.open(self.int4_path)
        file.require(self.entry.int4_specs)
        return file


@dataclass(frozen=True, slots=True)
class Bundle:
    """An export that can be run; see ``docs/bundle-format.md``."""

    root: Path
    manifest: BundleManifest

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> Bundle:
        """Open a bundle folder: cheap, and complete as far as names and sizes tell.

        Raises:
            BundleError: it is no bundle, of a newer schema, or a file is missing or has another size.
        """
        bundle = cls.read_manifest(root)
        bundle.check_files()
        return bundle

    @classmethod
    def open_to_build(cls, root: str | os.PathLike[str]) -> Bundle:
        """Open a bundle whose engines may be missing or damaged, because they are about to be built.

        Raises:
            BundleError: as ``open``, for every other file.
        """
        bundle = cls.read_manifest(root)
        bundle.check_files(bundle.manifest.files.keys() - {engine.file for engine in bundle.manifest.engines})
        return bundle

    @classmethod
    def read_manifest(cls, root: str | os.PathLike[str]) -> Bundle:
        """Open a bundle whose files may be missing or damaged, as ``verify`` does.

        Raises:
            BundleError: it is no bundle, of a newer schema, or ``bundle.json`` is damaged.
        """
        folder = Path(root)
        manifest = BundleManifest.from_bytes(_read_manifest(folder), where=str(folder / MANIFEST_NAME))
        for name in manifest.files:
            _check_relative(folder, name)
        for name in (*_REQUIRED, *manifest.referenced_files):
            if name not in manifest.files:
                raise BundleError(f"{folder / MANIFEST_NAME} does not list {name!r}, which a bundle needs")
        return cls(folder, manifest)

    def check_files(self, names: Collection[str] | None = None) -> None:
        """Look at the size of every file, or of those named.

        Raises:
            BundleError: one is missing or has another size; the message says how to mend the bundle.
        """
        for name in sorted(self.manifest.files if names is None else names):
            problem = self._problem(name)
            if problem is not None:
                raise BundleError(problem)

    def is_whole(self, name: str) -> bool:
        """Return whether a listed file is there with the size that is listed."""
        return self._problem(name) is None

    def _problem(self, name: str) -> str | None:
        path, expected_bytes = self.path(name), self.manifest.files[name].size_bytes
        sms = [engine.sm for engine in self.manifest.engines if engine.file == name]
        build = f"build it again with edgeprec build {self.root} --tensorrt {','.join(sms)}" if sms else ""
        if not path.is_file():
            return f"{path} is missing from the bundle: {build or 'copy or export it again'}"
        size = path.stat().st_size
        if size != expected_bytes:
            remedy = build or "copy or export the bundle again"
            return f"{path} has {size:,} bytes, expected {expected_bytes:,}: {remedy}"
        return None

    @property
    def target(self) -> BundleModel:
        """Return the model whose tokens are wanted."""
        return BundleModel(self, "target", self.manifest.target)

    @property
    def draft(self) -> BundleModel | Literal["self"] | None:
        """Return the draft model, ``"self"`` where the target's INT4 variant drafts, or None."""
        entry = self.manifest.draft
        return BundleModel(self, "draft", entry) if isinstance(entry, ModelEntry) else entry

    @property
    def models(self) -> tuple[BundleModel, ...]:
        """Return the models that have files of their own."""
        draft = self.draft
        return (self.target, draft) if isinstance(draft, BundleModel) else (self.target,)

    @property
    def tokenizer_path(self) -> Path:
        """Return the tokenizer of the pair."""
        return self.path(TOKENIZER)

    @property
    def generation_path(self) -> Path:
        """Return the file of end-of-sequence ids and default settings."""
        return self.path(GENERATION)

    @property
    def chat_template_path(self) -> Path | None:
        """Return the chat template, None where the model has none."""
        return self.path(CHAT_TEMPLATE) if CHAT_TEMPLATE in self.manifest.files else None

    @property
    def calibration_path(self) -> Path | None:
        """Return the measured thresholds, None where the export was not calibrated."""
        return self.path(CALIBRATION) if CALIBRATION in self.manifest.files else None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, ``bundle.json`` left out."""
        return sum(entry.size_bytes for entry in self.manifest.files.values())

    def model(self, role: str) -> BundleModel:
        """Return ``"target"`` or ``"draft"``; the draft ``self`` is the target.

        Raises:
            BundleError: the bundle has no draft.
        """
        if role == "target" or self.draft == "self":
            return self.target
        draft = self.draft
        if not isinstance(draft, BundleModel):
            raise BundleError(f"{self.root} has no draft model: export it with --draft")
        return draft

    def path(self, name: str) -> Path:
        """Return the path of a listed file; ``name`` is relative to the bundle, with slashes.

        Raises:
            BundleError: the file is not listed, or a link leads out of the bundle.
        """
        if name not in self.manifest.files:
            raise BundleError(f"{self.root} has no file {name!r}: it is not listed in {MANIFEST_NAME}")
        path = self.root / name
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise BundleError(f"{path} is a link that leads out of the bundle: put the file itself there")
        return path

    def to_summary(self) -> dict[str, Any]:
        """Return what ``inspect --json`` prints of the manifest."""
        values = self.manifest.to_json()
        sizes = {name: entry.size_bytes for name, entry in self.manifest.files.items()}
        engines = [engine | {"bytes": sizes[engine["file"]]} for engine in values["engines"]]
        return values | {"path": str(self.root), "bytes": self.size_bytes, "engines": engines}


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            data = file.read(_MANIFEST_LIMIT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(_why_no_bundle(folder)) from error
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MANIFEST_LIMIT_BYTES:
        raise BundleError(f"{path} is larger than {_MANIFEST_LIMIT_BYTES:,} bytes: it is damaged")
    return data


def _why_no_bundle(folder: Path) -> str:
    if folder.is_dir():
        return f"{folder} is not a bundle: it has no {MANIFEST_NAME}; make one with edgeprec export"
    if folder.exists():
        return f"{folder} is not a bundle: it is a file, expected a folder with {MANIFEST_NAME}"
    if folder.with_name(f"{folder.name}.partial").exists():
        return f"{folder} was not finished: run its edgeprec export again with --resume"
    return f"there is no bundle {folder}: make one with edgeprec export SOURCE -o {folder}"


def _check_relative(folder: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and name == "/".join(parts) and not {"..", "/", "."} & set(parts)
    if not is_plain or "\\" in name or not name.isprintable() or name == MANIFEST_NAME:
        raise BundleError(f"{folder / MANIFEST_NAME} lists the file name {name!r}, which could lie outside the bundle")
