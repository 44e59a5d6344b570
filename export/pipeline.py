"""From a checkpoint to a bundle: read, quantize, draw the graphs, calibrate, put in place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import CALIBRATION, CHAT_TEMPLATE, GENERATION, TOKENIZER
from edgeprec.bundle_schema import BundleManifest, FileEntry
from edgeprec.export.calibrate import Forward, ModelOnCall, ModelPasses, calibrate
from edgeprec.export.calibration_texts import CalibrationTexts, read_texts
from edgeprec.export.checkpoint import Checkpoint, SourceDigest, open_checkpoint
from edgeprec.export.draft_reader import is_shared_draft, open_draft
from edgeprec.export.draft_weights import lies_on_grid
from edgeprec.export.model_export import ModelExport
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.export.settings import ExportSettings
from edgeprec.export.writer import BundleTransaction, require_free_output
from edgeprec.vocabulary import Vocabulary, require_same_vocabulary

__all__ = ["OpenForward", "export_pair", "open_drafter", "require_pair"]

OpenForward = Callable[[Path, ModelConfig], AbstractContextManager[Forward]]
"""Load a graph and return its passes for as long as the context lasts."""


def export_pair(
    source: str | Checkpoint,
    output: Path,
    *,
    draft: str | Literal["self", "none"],
    settings: ExportSettings,
    resume: bool,
    open_forward: OpenForward,
    progress: Progress,
) -> Path:
    """Export a target, by its place or opened already, and its draft into the folder ``output`` and return it.

    Raises:
        ConfigError: a source, the calibration text or the output cannot be used, or the vocabularies differ.
        EdgePrecError: the disk is full, or a graph does not run as meant.
    """
    if not resume:
        require_free_output(output)
    target = open_checkpoint(source) if isinstance(source, str) else source
    drafter = None if draft in ("self", "none") else open_drafter(draft, target)
    if drafter is not None:
        require_pair(target, drafter)
    text = settings.read_text() if settings.reads_text else ""
    sources = _digest_sources(target, drafter, progress)
    fingerprint = _fingerprint(sources, draft, settings, text)
    with BundleTransaction(output, resume=resume, fingerprint=fingerprint) as transaction:
        if transaction.is_complete:
            return output
        texts = read_texts(target, text) if settings.reads_text else CalibrationTexts()
        work = _Work(transaction, settings, texts, progress)
        return work.run(target, drafter, draft, sources, name=output.name.removesuffix(".edgeprec"), open_=open_forward)


def open_drafter(draft: str, target: Checkpoint) -> Checkpoint:
    """Open the checkpoint ``draft``, one that shares parts of its target included.

    Raises:
        ConfigError: it cannot be used, or was made for another target.
    """
    return open_draft(Path(draft).expanduser(), target) if is_shared_draft(draft) else open_checkpoint(draft)


@dataclass(frozen=True, slots=True)
class _Work:
    """One export inside its transaction."""

    transaction: BundleTransaction
    settings: ExportSettings
    texts: CalibrationTexts
    progress: Progress

    def run(
        self,
        target: Checkpoint,
        drafter: Checkpoint | None,
        draft: str,
        sources: Mapping[str, FileEntry],
        *,
        name: str,
        open_: OpenForward,
    ) -> Path:
        exports = {"target": self._model(target, "target")}
        is_sharing = drafter is not None and is_shared_draft(draft)
        if drafter is not None:
            exports["draft"] = self._model(drafter, "draft", lender=exports["target"] if is_sharing else None)
        self.transaction.require_space(needed_bytes=sum(export.size_bytes for export in exports.values()))
        entries = {role: export.run() for role, export in exports.items()}
        self._write_tokenizer(target)
        if drafter is not None and not is_sharing:
            self._write_draft_tokenizer(drafter)
        self._calibrate(exports, open_)
        manifest = BundleManifest(
            name=name,
            export_fingerprint="",
            target=entries["target"],
            draft=entries.get("draft", "self" if draft == "self" else None),
            sources=sources,
        )
        return self.transaction.finish(
            manifest, progress=lambda done, total: self.progress(ProgressEvent("digest", done, total))
        )

    def _model(self, checkpoint: Checkpoint, role: str, lender: ModelExport | None = None) -> ModelExport:
        settings = self.settings.quantizer
        if lender is not None and lies_on_grid(checkpoint, settings):
            settings = replace(settings, method="rtn")  # what was trained in INT4 is INT4 already
        return ModelExport(self.transaction, checkpoint, role, settings, self.texts.windows, self.progress, lender)

    def _write_tokenizer(self, target: Checkpoint) -> None:
        if self.transaction.is_done("tokenizer"):
            return
        files = target.tokenizer
        with self.transaction.step("tokenizer"):
            self.transaction.write_bytes(TOKENIZER, files.tokenizer_json)
            self.transaction.write_bytes(GENERATION, _json_bytes(dict(files.generation)))
            if files.chat_template is not None:
                self.transaction.write_bytes(CHAT_TEMPLATE, files.chat_template.encode())

    def _write_draft_tokenizer(self, drafter: Checkpoint) -> None:
        """Keep the draft's own tokenizer, so that loading can compare the vocabularies again."""
        if not self.transaction.is_done("draft/tokenizer"):
            with self.transaction.step("draft/tokenizer"):
                self.transaction.write_bytes(f"draft/{TOKENIZER}", drafter.tokenizer.tokenizer_json)

    def _calibrate(self, exports: Mapping[str, ModelExport], open_: OpenForward) -> None:
        if not self.settings.measures_thresholds or self.transaction.is_done("calibration"):
            return
        models = {role: _on_call(export, open_) for role, export in exports.items()}
        measured = calibrate(
            models["target"],
            self.texts,
            text_name=self.settings.text_name,
            progress=self.progress,
            draft=models.get("draft"),
        )
        with self.transaction.step("calibration"):
            self.transaction.write_bytes(CALIBRATION, _json_bytes(measured.to_json()))


def _on_call(export: ModelExport, open_: OpenForward) -> ModelOnCall:
    config = export.checkpoint.config

    @contextmanager
    def load() -> Iterator[ModelPasses]:
        with export.calibration_graph() as graph, open_(graph, config) as forward:
            yield ModelPasses(forward, config.num_layers)

    return ModelOnCall(load, config.max_positions, config.vocab_size)


def require_pair(target: Checkpoint, drafter: Checkpoint) -> None:
    """Refuse a draft that does not speak the target's vocabulary.

    Raises:
        ConfigError: names the first id that differs.
    """
    require_same_vocabulary(_vocabulary(target, "target"), _vocabulary(drafter, "draft"))


def _vocabulary(checkpoint: Checkpoint, role: str) -> Vocabulary:
    return Vocabulary.from_tokenizer_json(
        checkpoint.tokenizer.tokenizer_json, width=checkpoint.config.vocab_size, where=f"the {role}'s tokenizer.json"
    )


def _digest_sources(target: Checkpoint, drafter: Checkpoint | None, progress: Progress) -> dict[str, FileEntry]:
    checkpoints = {"target": target} | ({"draft": drafter} if drafter is not None else {})
    total = sum(checkpoint.source_bytes for checkpoint in checkpoints.values())
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress(ProgressEvent("read", done, total))

    found: dict[str, SourceDigest] = {}
    for role, checkpoint in checkpoints.items():
        prefix = "" if role == "target" else "draft/"
        found |= {prefix + file: digest for file, digest in checkpoint.digest_sources(on_bytes).items()}
    return {file: FileEntry(digest.bytes, digest.sha256) for file, digest in found.items()}


def _fingerprint(sources: Mapping[str, FileEntry], draft: str, settings: ExportSettings, text: str) -> str:
    """Return a digest of everything that decides the bundle's bytes."""
    facts = {
        "version": version("edgeprec"),
        "sources": {file: entry.sha256 for file, entry in sources.items()},
        "draft": draft if draft in ("self", "none") else "model",
        "quantizer": asdict(settings.quantizer),
        "text": hashlib.sha256(text.encode()).hexdigest(),
        "text_name": settings.text_name,
        "measures_thresholds": settings.measures_thresholds,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _json_bytes(values: object) -> bytes:
    return (json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()
