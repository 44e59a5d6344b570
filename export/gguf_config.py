"""Translate GGUF metadata into a ModelConfig, refusing what the graph cannot compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.gguf_file import GgufFile
from edgeprec.export.json_object import JsonObject

__all__ = ["GGUF_ARCHITECTURES", "context_tokens", "read_gguf_config"]

GGUF_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Supported values of ``general.architecture``; Mistral and SmolLM files say ``llama``."""


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Return the model's shape and constants, rope scaling apart, which stands in a tensor.

    Raises:
        ConfigError: a key is missing or of the wrong kind, or the model needs something that is not supported.
    """
    family = _family(file)
    raw = _arch_values(file)
    _refuse_unsupported(file, raw)
    num_heads = _per_model(raw, "attention.head_count")
    window = raw.integer("attention.sliding_window", 0) or context_tokens(file)
    return ModelConfig(
        family=family,
        vocab_size=_vocab_size(file),
        hidden_size=raw.integer("embedding_length"),
        intermediate_size=_per_model(raw, "feed_forward_length"),
        num_layers=raw.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=_per_model(raw, "attention.head_count_kv", num_heads),
        head_dim=_head_dim(raw, num_heads),
        rms_norm_eps=_shortest(raw.number("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(raw.number("rope.freq_base", 10_000.0)),
        max_positions=min(context_tokens(file), window),
        tied_embeddings="output.weight" not in file.tensors,
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        has_qk_norm=family == "qwen3",
    )


def context_tokens(file: GgufFile) -> int:
    """Return the context the model was made for, whatever its sliding window."""
    return _arch_values(file).integer("context_length")


def _family(file: GgufFile) -> str:
    named = file.metadata.get("general.architecture")
    if not isinstance(named, str) or named not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        raise ConfigError(f"{file.path}: architecture {named!r} is not supported, expected one of: {supported}")
    return GGUF_ARCHITECTURES[named]


def _arch_values(file: GgufFile) -> JsonObject:
    """Return the keys of the file's architecture without their prefix."""
    prefix = f"{file.metadata['general.architecture']}."
    values: Mapping[str, Any] = {
        key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)
    }
    return JsonObject(values, origin=f"{file.path}: metadata of {prefix.rstrip('.')}")


def _refuse_unsupported(file: GgufFile, raw: JsonObject) -> None:
    parts = JsonObject(file.metadata, origin=str(file.path)).integer("split.count", 1)
    if parts > 1:
        raise ConfigError(
            f"{file.path} is one of {parts} split files, expected a single one: merge them with gguf-split"
        )
    if raw.integer("expert_count", 0):
        raise ConfigError(f"{file.path} is a mixture of experts, which is not supported")
    kind = raw.get("rope.scaling.type", "none")
    if kind != "none":
        raise ConfigError(f"{file.path}: rope scaling {kind!r} is not supported, expected none or Llama 3's")


def _head_dim(raw: JsonObject, num_heads: int) -> int:
    head_dim = raw.integer("attention.key_length", raw.integer("embedding_length") // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        value = raw.integer(key, head_dim)
        if value != head_dim:
            raise ConfigError(f"{raw.origin}: {key} is {value}, expected the head width {head_dim}: not supported")
    return head_dim


def _per_model(raw: JsonObject, key: str, default: int | None = None) -> int:
    """Return a count that may be listed per layer, where all layers agree."""
    value = raw.get(key)
    if not isinstance(value, list):
        return raw.integer(key, default)
    if len(set(value)) != 1:
        raise ConfigError(f"{raw.origin}: {key} differs from layer to layer, which is not supported")
    return JsonObject({key: value[0]}, origin=raw.origin).integer(key)


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path} has no tensor token_embd.weight: it is not a whole model")
    return embedding.shape[0]


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: the file's 9.99999974e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
