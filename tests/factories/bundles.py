"""A tiny bundle of made-up weights, written by the product's own transaction: whole, except that its graphs are blank.

Use it where names, bytes and shapes matter and nothing is run. Load it by path, as ``tests/edgeprec/conftest.py`` does:
``bundles.make_bundle(tmp_path / "pair.edgeprec", draft="self")``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import ModelConfig
from edgeprec.bundle_model import Fp16Variant, Int4Variant, LayerError, ModelEntry
from edgeprec.bundle_schema import BundleManifest, FileEntry
from edgeprec.export.writer import BundleTransaction
from edgeprec.tensor_names import linear_names
from edgeprec.tensor_spec import TensorSpec, TensorType

__all__ = ["FINGERPRINT", "make_bundle", "make_config", "make_entry", "make_manifest", "tensor_values", "write_model"]

FINGERPRINT = "f" * 64
TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}}, "added_tokens": []}


def make_config(**changes: Any) -> ModelConfig:
    """Return a two-layer Llama of odd vocabulary; ``changes`` are fields of ModelConfig."""
    values: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 21,
        "hidden_size": 16,
        "intermediate_size": 40,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_positions": 2048,
        "tied_embeddings": True,
    }
    return ModelConfig(**values | changes)


def make_entry(role: str = "target", config: ModelConfig | None = None, **changes: Any) -> ModelEntry:
    """Return what ``bundle.json`` says of a model."""
    config = config or make_config()
    errors = [
        LayerError(
            layer=None if name == "head" else int(name.split(".")[1]),
            linear=name.rpartition(".")[2],
            relative_error=0.0625,
            output_error=None if name == "head" else 0.03125,
        )
        for name in linear_names(config)
    ]
    values: dict[str, Any] = {
        "architecture": config,
        "fp16": Fp16Variant(file=f"{role}/fp16.safetensors"),
        "int4": Int4Variant(
            file=f"{role}/int4.safetensors", bits_per_weight=4.5, group_size=32, symmetric=True, quantizer="clip"
        ),
        "graphs": {"fp32": f"{role}/model.fp32.onnx"},
        "errors": tuple(errors),
    }
    return ModelEntry(**values | changes)


def make_manifest(*, draft: ModelEntry | Literal["self"] | None = "self", **changes: Any) -> BundleManifest:
    """Return a manifest without files."""
    values: dict[str, Any] = {
        "name": "tiny",
        "export_fingerprint": FINGERPRINT,
        "target": make_entry(),
        "draft": draft,
        "sources": {"model.safetensors": FileEntry(1234, "a" * 64)},
        "edgeprec_version": "0.1.0",
    }
    return BundleManifest(**values | changes)


def tensor_values(spec: TensorSpec) -> npt.NDArray[Any]:
    """Return values decided by the tensor's name, the same with every version of numpy and exact in FP16."""
    pattern = (np.arange(spec.num_elements, dtype=np.int64) * 37 + zlib.crc32(spec.name.encode())) % 251
    values = pattern if spec.dtype is TensorType.U8 else (pattern - 125) / 64
    return values.astype(spec.dtype.numpy).reshape(spec.shape)


def write_model(transaction: BundleTransaction, entry: ModelEntry) -> None:
    """Write a model's files in one step each, skipping those that are done."""
    for name, specs in ((entry.fp16.file, entry.fp16_specs), (entry.int4.file, entry.int4_specs)):
        file = transaction.tensor_file(name, specs)
        if not transaction.is_done(name):
            with transaction.step(name):
                for spec in specs:
                    file.write(spec.name, tensor_values(spec))
    for graph in entry.graphs.values():
        transaction.write_bytes(graph, b"blank graph\n")


def make_bundle(
    path: Path,
    *,
    draft: ModelEntry | Literal["self"] | None = "self",
    files: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> Path:
    """Write a bundle and return its path. ``files`` adds files; ``changes`` are fields of BundleManifest."""
    manifest = make_manifest(draft=draft, **changes)
    contents = {
        "tokenizer.json": json.dumps(TOKENIZER).encode(),
        "generation.json": b'{"eos_token_ids": [2]}\n',
        "calibration.json": b'{"theta_low_bits": 0.5, "theta_high_bits": 2.0}\n',
        **(files or {}),
    }
    with BundleTransaction(path, resume=False, fingerprint=FINGERPRINT) as transaction:
        write_model(transaction, manifest.target)
        if isinstance(draft, ModelEntry):
            write_model(transaction, draft)
        for name, data in contents.items():
            transaction.write_bytes(name, data)
        return transaction.finish(manifest)
