"""The JSON files of a hand-off folder: what transformers, vLLM and SGLang read before the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel, TemplateProcessing

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.draft_writer import draft_config_json
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.tokenizer_files import TokenizerFiles

__all__ = ["config_files", "quantization_config", "require_family"]


def require_family(config: ModelConfig) -> None:
    """Refuse a model that ``config.json`` cannot describe: there the family decides where biases are.

    Raises:
        ConfigError: a family with a bias it does not have elsewhere, or without the one it has.
    """
    if config.has_qkv_bias != (config.family == "qwen2"):
        has = "a bias" if config.has_qkv_bias else "no bias"
        raise ConfigError(
            f"this {config.family} model has {has} on q, k and v, which a Hugging Face checkpoint of the family cannot "
            "say: leave --format out, a bundle can"
        )


def config_files(
    config: ModelConfig, tokenizer: TokenizerFiles, *, quantizer: QuantizerSettings | None
) -> dict[str, bytes]:
    """Return file name -> contents; ``quantizer`` None = all of the weights are FP16."""
    generation = tokenizer.generation
    special = {key: generation[key] for key in ("bos_token_id", "pad_token_id") if generation[key] is not None}
    ends = generation["eos_token_ids"]
    values = draft_config_json(config) | special
    if config.rope_scaling is not None:  # transformers 4 reads it here, and theta beside it
        values["rope_scaling"] = values["rope_parameters"]
    if ends:
        values["eos_token_id"] = ends[0]
        special["eos_token_id"] = ends
    if quantizer is not None:
        values["quantization_config"] = quantization_config(quantizer)
    files = {
        "config.json": _json_bytes(values),
        "generation_config.json": _json_bytes(special),
        "tokenizer.json": _with_bos_habit(tokenizer),
        "tokenizer_config.json": _json_bytes(_tokenizer_config(tokenizer)),
    }
    if tokenizer.chat_template is not None:
        files["chat_template.jinja"] = tokenizer.chat_template.encode()
    return files


def quantization_config(settings: QuantizerSettings) -> dict[str, Any]:
    """Return what ``config.json`` says of weights that ``settings`` made: all linears in groups but the head."""
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": settings.is_symmetric,
        "strategy": "group",
        "group_size": settings.group_size,
        "dynamic": False,
        "actorder": None,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _tokenizer_config(tokenizer: TokenizerFiles) -> dict[str, Any]:
    generation = tokenizer.generation
    vocabulary = Tokenizer.from_buffer(tokenizer.tokenizer_json)
    pad = generation["pad_token_id"]
    tokens = {
        "bos_token": generation["bos_token"],
        "eos_token": generation["eos_token"],
        "pad_token": None if pad is None else vocabulary.id_to_token(pad),
    }
    return {name: token for name, token in tokens.items() if token is not None} | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": generation["max_positions"],
    }


def _with_bos_habit(tokenizer: TokenizerFiles) -> bytes:
    """Return ``tokenizer.json`` such that it alone begins a text as EdgePrec does; mostly it does already."""
    generation = tokenizer.generation
    vocabulary = Tokenizer.from_buffer(tokenizer.tokenizer_json)
    adds_bos, bos, bos_id = generation["add_bos_token"], generation["bos_token"], generation["bos_token_id"]
    wanted = [bos_id] if adds_bos else []
    if vocabulary.encode("a").ids == wanted + vocabulary.encode("a", add_special_tokens=False).ids:
        return tokenizer.tokenizer_json
    vocabulary.post_processor = (
        TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, bos_id)])
        if adds_bos
        else ByteLevel(trim_offsets=False)  # it leaves the ids alone
    )
    return vocabulary.to_str().encode()


def _json_bytes(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
