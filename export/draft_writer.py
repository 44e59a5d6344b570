"""Write a distilled draft: a folder like a Hugging Face checkpoint, without what it shares with its target.

    config.json                    the target's shape with the draft's number of layers
    model.safetensors              layers and final norm, Hugging Face names; no embedding, no head. Linears that lie
                                   on an INT4 grid take four bits (draft_weights), the rest is fp16
    edgeprec_draft.json            what is shared, with which target, and from which layers it grew
    training.json                  how it was trained: command, data, loss, acceptance

``draft_reader.open_draft`` puts the two together again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from edgeprec.architecture import ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export.disk import disk_error, write_file
from edgeprec.export.draft_facts import DRAFT_FILE, DraftFacts
from edgeprec.export.draft_weights import pack_on_grid
from edgeprec.export.hf_config import ARCHITECTURES
from edgeprec.export.tensor_roles import LINEAR_PARTS, QKV_BIASES

__all__ = ["TRAINING_FILE", "draft_config_json", "split_merged", "write_draft"]

TRAINING_FILE = "training.json"


def write_draft(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, npt.NDArray[np.float32]],
    facts: DraftFacts,
    record: Mapping[str, Any],
    *,
    group_size: int,
) -> None:
    """Write the draft of shape ``config`` (the target's, ``num_layers`` the draft's) into ``folder``.

    ``weights`` are those of ``distill_model.Decoder``'s state dict: merged linears [out, in] by name. ``group_size`` is
    that of the grid they were trained on.

    Raises:
        ConfigError: a weight is not finite or beyond FP16, or the folder cannot be written.
        EdgePrecError: the disk is full.
    """
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, values in split_merged(config, weights):
        half = _to_fp16(name, values)
        packed = pack_on_grid(values, group_size=group_size) if values.ndim == 2 else None
        tensors |= {name: half} if packed is None else {name + end: part for end, part in packed.items()}
    files = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "config.json": _json_bytes(draft_config_json(config)),
        TRAINING_FILE: _json_bytes(dict(record)),
        DRAFT_FILE: _json_bytes(facts.to_json()),  # last: a folder that has it is whole
    }
    try:
        for name, data in files.items():
            write_file(folder / name, data, scratch=folder / f".{name}.part")
    except OSError as error:
        raise disk_error(error, folder, needed_bytes=sum(map(len, files.values()))) from error


def draft_config_json(config: ModelConfig) -> dict[str, Any]:
    """Return the Hugging Face ``config.json`` of a model of this shape."""
    architecture = next(name for name, family in ARCHITECTURES.items() if family == config.family)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {"rope_type": "llama3"} | {name: getattr(scaling, name) for name in type(scaling).__slots__}
    return {
        "architectures": [architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "sliding_window": None,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_embeddings,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        "dtype": "float16",
    }


def split_merged(
    config: ModelConfig, weights: Mapping[str, npt.NDArray[np.float32]]
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield every tensor under its Hugging Face name, [out, in], out of the merged ones."""
    widths = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    widths |= {"gate": config.intermediate_size, "up": config.intermediate_size}
    for layer in range(config.num_layers):
        source, to = f"layers.{layer}.", f"model.layers.{layer}."
        for merged, parts in LINEAR_PARTS.items():
            values, row = weights[f"{source}linears.{merged}.weight"], 0
            for part in parts:
                rows = widths.get(part, len(values))
                yield f"{to}{_module(part)}.weight", values[row : row + rows]
                row += rows
        if config.has_qkv_bias:
            values, row = weights[f"{source}linears.qkv.bias"], 0
            for role in QKV_BIASES:
                part = role.removesuffix("_bias")
                yield f"{to}{_module(part)}.bias", values[row : row + widths[part]]
                row += widths[part]
        yield f"{to}input_layernorm.weight", weights[f"{source}norms.input.scale"]
        yield f"{to}post_attention_layernorm.weight", weights[f"{source}norms.post_attention.scale"]
        if config.has_qk_norm:
            for part in ("q", "k"):
                yield f"{to}self_attn.{part}_norm.weight", weights[f"{source}norms.{part}.scale"]
    yield "model.norm.weight", weights["final_norm.scale"]


def _module(part: str) -> str:
    block = "self_attn" if part in ("q", "k", "v", "o") else "mlp"
    return f"{block}.{part}_proj"


def _to_fp16(name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values, np.float16)
    if not np.isfinite(rounded).all():
        raise ConfigError(f"trained tensor {name} holds values FP16 cannot hold: train with a smaller --learning-rate")
    return rounded


def _json_bytes(values: object) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
