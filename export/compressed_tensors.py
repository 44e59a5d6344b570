"""Hand a target over to a cluster: its INT4 form as a checkpoint that vLLM, SGLang and transformers load as is.

    DIR/            the target: linears of the layers in INT4, embedding, head, norms and biases in FP16
    DIR/draft/      the draft in FP16, embedding and head included, where one was given

The head stays FP16 although a bundle has it in INT4 too: servers expect it so, and it decides every token. Scales are
positive. The format's arithmetic, level times scale, permits negative ones, but nothing else that writes it makes them,
so no server's kernels are tested with them; blocks led by a positive value lose one level of sixteen for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import LINEARS, LinearName, ModelConfig
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import disk
from edgeprec.export.activations import ActivationStream
from edgeprec.export.bundle_checkpoint import BundleCheckpoint, open_bundle_draft
from edgeprec.export.calibration_texts import CalibrationTexts, read_texts
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.compressed_tensors_config import config_files, require_family
from edgeprec.export.compressed_tensors_layout import pack_columns, require_packable
from edgeprec.export.hf_shards import ShardWriter
from edgeprec.export.huggingface import HF_ROLE_NAMES
from edgeprec.export.model_tensors import Tensors, layer_tensors, outer_tensors
from edgeprec.export.pipeline import open_drafter, require_pair
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.export.quantizer import InputStatistics, QuantizerSettings, quantize
from edgeprec.export.settings import ExportSettings
from edgeprec.export.tensor_roles import LINEAR_PARTS, NORM_ROLES, QKV_BIASES, layer_shapes
from edgeprec.export.writer import require_free_output
from edgeprec.tensor_names import fp16_tensors, int4_tensors

__all__ = ["DRAFT_FOLDER", "export_hand_off"]

DRAFT_FOLDER = "draft"
_OUTER_ROLES = {"embed": "embedding", "final_norm": "final_norm", "head": "head"}


def export_hand_off(source: str, output: Path, *, draft: str, settings: ExportSettings, progress: Progress) -> Path:
    """Write the target and its draft into the new folder ``output`` and return it.

    ``draft`` is a checkpoint, ``"none"``, or ``"self"``: the draft model in ``source`` where that is a bundle with one.

    It appears when it is whole. Until then the work lies in a hidden folder beside it, which an error removes.

    Raises:
        ConfigError: a source, the calibration text or the output cannot be used, the vocabularies differ, or the model
            does not fit the format.
        EdgePrecError: the disk is full.
    """
    require_free_output(output)
    quantizer = replace(settings.quantizer, has_signed_scales=False)
    target = open_checkpoint(source)
    require_family(target.config)
    require_packable(target.config, quantizer)
    drafter = _open_draft(draft, target)
    texts = read_texts(target, settings.read_text()) if quantizer.method != "rtn" else CalibrationTexts()
    needed_bytes = _target_bytes(target.config, quantizer) + (0 if drafter is None else _fp16_bytes(drafter.config))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _require_space(output.parent, needed_bytes)
        with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
            folder = Path(scratch) / output.name
            _write_model(folder, target, _Int4Layers(target, quantizer, texts.windows, progress))
            if drafter is not None:
                _write_model(folder / DRAFT_FOLDER, drafter, None)
            require_free_output(output)
            folder.rename(output)
        disk.sync_folder(output.parent)
    except OSError as error:
        raise _write_error(error, output) from error
    return output


def _open_draft(draft: str, target: Checkpoint) -> Checkpoint | None:
    drafter = _find_draft(draft, target)
    if drafter is None:
        return None
    require_family(drafter.config)
    require_pair(target, drafter)
    rows = target.config.vocab_size, drafter.config.vocab_size
    if rows[0] != rows[1]:
        raise ConfigError(
            f"the draft has {rows[1]} rows of vocabulary and the target {rows[0]}, servers expect as many: choose "
            "another draft, or leave --draft out"
        )
    return drafter


def _find_draft(draft: str, target: Checkpoint) -> Checkpoint | None:
    if draft == "self" and isinstance(target, BundleCheckpoint):
        return open_bundle_draft(target)
    return None if draft in ("self", "none") else open_drafter(draft, target)


@dataclass(slots=True)
class _Int4Layers:
    """Quantizes the layers of a target in order, on what the calibration text makes of them."""

    checkpoint: Checkpoint
    settings: QuantizerSettings
    windows: Sequence[Sequence[int]]
    progress: Progress
    _stream: ActivationStream | None = None

    def linears(self, layer: int, tensors: Tensors) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the tensors of one layer's linears under their Hugging Face names."""
        config = self.checkpoint.config
        self.progress(ProgressEvent("quantize", layer, config.num_layers, f"layer {layer}"))
        statistics = self._advance(layer, tensors)
        for linear in LINEARS:
            weight = quantize(tensors[f"layers.{layer}.{linear}"], self.settings, statistics.get(linear)).weight
            for role, columns in _parts(config, linear):
                stem = HF_ROLE_NAMES[role].format(layer=layer).removesuffix("weight")
                for end, values in pack_columns(weight, columns).items():
                    yield stem + end, values
        self.progress(ProgressEvent("quantize", layer + 1, config.num_layers, ""))

    def _advance(self, layer: int, tensors: Tensors) -> dict[LinearName, InputStatistics]:
        if self.settings.method == "rtn":
            return {}
        if self._stream is None:
            self._stream = ActivationStream(
                self.checkpoint.config,
                self.checkpoint.embedding(),
                self.windows,
                with_hessian=self.settings.method == "gptq",
            )
        return self._stream.advance(layer, tensors)


def _write_model(folder: Path, checkpoint: Checkpoint, layers: _Int4Layers | None) -> None:
    """Write a checkpoint's folder; without ``layers`` its linears stay FP16."""
    folder.mkdir()
    config = checkpoint.config
    shards = ShardWriter(folder)
    for layer in range(config.num_layers):
        tensors = layer_tensors(checkpoint, layer)
        linears = _fp16_linears(config, layer, tensors) if layers is None else layers.linears(layer, tensors)
        shards.add(dict(linears) | dict(_vectors(config, layer, tensors)))
    for name, values in outer_tensors(checkpoint):
        shards.add({HF_ROLE_NAMES[_OUTER_ROLES[name]]: (values.T if name == "head" else values).astype(np.float16)})
    shards.finish()
    files = config_files(config, checkpoint.tokenizer, quantizer=None if layers is None else layers.settings)
    for name, data in files.items():
        disk.write_file(folder / name, data, scratch=folder / f".{name}")


def _fp16_linears(config: ModelConfig, layer: int, tensors: Tensors) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for linear in LINEARS:
        for role, columns in _parts(config, linear):
            yield HF_ROLE_NAMES[role].format(layer=layer), tensors[f"layers.{layer}.{linear}"][:, columns].T


def _vectors(config: ModelConfig, layer: int, tensors: Tensors) -> Iterator[tuple[str, npt.NDArray[np.float16]]]:
    """Yield norms and biases; the import has refused what FP16 cannot hold."""
    for role in NORM_ROLES.values():
        if f"layers.{layer}.{role}" in tensors:
            yield HF_ROLE_NAMES[role].format(layer=layer), tensors[f"layers.{layer}.{role}"].astype(np.float16)
    if config.has_qkv_bias:
        bias = tensors[f"layers.{layer}.qkv.bias"].astype(np.float16)
        for role, (_, columns) in zip(QKV_BIASES, _parts(config, "qkv"), strict=True):
            yield HF_ROLE_NAMES[role].format(layer=layer), bias[columns]


def _parts(config: ModelConfig, linear: str) -> Iterator[tuple[str, slice]]:
    """Yield (role, columns) of what a merged linear is made of."""
    start = 0
    for role in LINEAR_PARTS[linear]:
        stop = start + layer_shapes(config)[role][0]
        yield role, slice(start, stop)
        start = stop


def _target_bytes(config: ModelConfig, settings: QuantizerSettings) -> int:
    int4 = int4_tensors(config, group_size=settings.group_size, symmetric=settings.is_symmetric, has_head=False)
    tables = 1 if config.tied_embeddings else 2
    return sum(spec.num_bytes for spec in int4) + 2 * tables * config.vocab_size * config.hidden_size


def _fp16_bytes(config: ModelConfig) -> int:
    return sum(spec.num_bytes for spec in fp16_tensors(config))


def _require_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = disk.free_bytes(folder)
    if free_bytes < needed_bytes:
        raise EdgePrecError(
            f"the checkpoint takes {needed_bytes:,} bytes and {folder} has {free_bytes:,} free: make room, or choose "
            "another folder with -o"
        )


def _write_error(error: OSError, output: Path) -> EdgePrecError:
    is_full = error.errno in disk.WRITE_ERRORS
    reason = os.strerror(error.errno) if error.errno else str(error)
    kind = EdgePrecError if is_full else ConfigError
    return kind(f"{output} cannot be written: {reason}; nothing was kept, make room or choose another folder with -o")
