"""A model of a bundle as a checkpoint: quantize a bundle anew, or turn its model into another, without its source.

Only the FP16 variant is read. A bundle exported from bf16 or from a quantized file gives what that export made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import SourceDigest, digest_files
from edgeprec.export.checkpoint_weights import LinearName, NormName
from edgeprec.export.tensor_source import FloatArray
from edgeprec.export.tokenizer_files import TokenizerFiles
from edgeprec.strict_json import parse_json
from edgeprec.tensor_sharing import find_tensor

__all__ = ["BundleCheckpoint", "open_bundle_checkpoint", "open_bundle_draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCheckpoint:
    """The FP16 variant of one of a bundle's models, with what a draft shares of its target."""

    bundle: Bundle
    tokenizer: TokenizerFiles
    model: BundleModel
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the bundle's name."""
        return self.bundle.manifest.name

    @property
    def config(self) -> ModelConfig:
        """Return the model's shape and constants."""
        return self.model.architecture

    @property
    def source_bytes(self) -> int:
        """Return the size of what is read."""
        return sum(path.stat().st_size for path in self._files)

    @property
    def _files(self) -> tuple[Path, ...]:
        found = (self.model.fp16_path, self.model.tokenizer_path, self.bundle.generation_path)
        template = self.bundle.chat_template_path
        return found if template is None else (*found, template)

    def digest_sources(self, progress: Callable[[int], None] | None = None) -> dict[str, SourceDigest]:
        """Read every source file and return file name -> digest."""
        return digest_files(self._files, progress)

    def linear(self, layer: int, name: LinearName) -> FloatArray:
        """Return a merged linear [K, N]."""
        return self._array(f"layers.{layer}.{name}")

    def bias(self, layer: int) -> npt.NDArray[np.float32] | None:
        """Return the bias of qkv [N], or None."""
        return self._array(f"layers.{layer}.qkv.bias") if self.config.has_qkv_bias else None

    def norm(self, layer: int, name: NormName) -> npt.NDArray[np.float32]:
        """Return the scale of a norm."""
        return self._array(f"layers.{layer}.{name}_norm")

    def embedding(self) -> npt.NDArray[np.float16]:
        """Return the embedding table [V, D]."""
        return self._array("embed")

    def final_norm(self) -> npt.NDArray[np.float32]:
        """Return the scale of the last norm [D]."""
        return self._array("final_norm")

    def head(self) -> npt.NDArray[np.float16] | None:
        """Return the output head [D, V], or None."""
        return None if self.config.tied_embeddings else self._array("head")

    def _array(self, name: str) -> npt.NDArray[Any]:
        owner = self.bundle.target if find_tensor(self.model, name).is_shared else self.model
        with owner.open_fp16() as file:
            return file.array(name)


def open_bundle_checkpoint(folder: Path) -> BundleCheckpoint:
    """Open the target of a bundle as a checkpoint; reads the tokenizer, no weights.

    Raises:
        BundleError: it is no whole bundle.
    """
    bundle = Bundle.open(folder)
    return _open(bundle, bundle.target)


def open_bundle_draft(target: BundleCheckpoint) -> BundleCheckpoint | None:
    """Open the draft model in a target's bundle, or return None where the bundle has none of its own."""
    draft = target.bundle.draft
    return _open(target.bundle, draft) if isinstance(draft, BundleModel) else None


def _open(bundle: Bundle, model: BundleModel) -> BundleCheckpoint:
    template = bundle.chat_template_path
    generation = parse_json(bundle.generation_path.read_bytes(), where=str(bundle.generation_path), error=ConfigError)
    tokenizer = TokenizerFiles(
        tokenizer_json=model.tokenizer_path.read_bytes(),
        chat_template=None if template is None else template.read_text(encoding="utf-8"),
        generation=generation,
    )
    return BundleCheckpoint(bundle=bundle, tokenizer=tokenizer, model=model)
